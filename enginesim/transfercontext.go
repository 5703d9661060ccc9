package enginesim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

// contextFirst has the handshake of TensorRT-LLM's trtllm-serve. The requests come one after the other:
//
//	disaggregated_params                             engine
//	"request_type": "context_only"                   computes the prompt and one token, and answers with the place of the blocks
//	these, with "request_type": "generation_only"    fetches the blocks, and decodes from the second token on
//
// The first answer has the parameters in its first choice, and the tokens of the prompt, which the second request has in place of
// a text. Ids are numbers of 63 bits. As in tensorrt_llm/serve/openai_server.py, every error has the status 400, also the error
// of a failed transfer. Unlike there, also streams have it, whose status is 200 in TensorRT-LLM.
type contextFirst struct {
	sim    *Sim
	engine string // the id of this engine
}

// disaggParams are "disaggregated_params", as class DisaggregatedParams of tensorrt_llm/serve/openai_protocol.py has them.
// Members without a value are null. Members that the simulator has no use for have no type here: log probabilities,
// logits, and the endpoint of another schedule style, with which both requests come at once.
type disaggParams struct {
	RequestType  string          `json:"request_type"`
	FirstTokens  []uint32        `json:"first_gen_tokens"` // one for each beam
	LogProbs     json.RawMessage `json:"first_gen_log_probs"`
	Logits       json.RawMessage `json:"first_gen_logits"`
	ContextID    *int64          `json:"ctx_request_id"`
	State        *string         `json:"encoded_opaque_state"` // a contextState in base64
	Drafts       []uint32        `json:"draft_tokens"`
	RequestID    *int64          `json:"disagg_request_id"`
	Rank         *int            `json:"ctx_dp_rank"`
	Endpoint     json.RawMessage `json:"ctx_info_endpoint"`
	Style        json.RawMessage `json:"schedule_style"`
	Conversation *string         `json:"conversation_id"`
	Usage        json.RawMessage `json:"ctx_usage"`
}

// contextState is the place of a prompt's blocks. Routers do not read it.
type contextState struct{ Engine, Address string }

// Request types.
const (
	contextOnly   = "context_only"
	generateOnly  = "generation_only"
	contextAndGen = "context_and_generation"
)

// refuse returns an error of trtllm-serve.
func refuse(message string) error {
	return &openai.Error{Status: http.StatusBadRequest, Message: message}
}

// errContextTransfer is the answer to a request whose transfer failed.
var errContextTransfer = refuse("Generation failed: Error in kv cache transfer for generation requests")

// readLeg reads "disaggregated_params", and the tokens of a chat's prompt.
func (x *contextFirst) readLeg(c *completion, body []byte) (leg, error) {
	var asked struct {
		Params json.RawMessage `json:"disaggregated_params"`
		Prompt []uint32        `json:"prompt_token_ids"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, openai.Invalid("", "", "%v", err)
	}
	if asked.Prompt != nil && c.req.Endpoint == openai.Chat {
		c.replacePrompt(x.sim, asked.Prompt)
	}
	if absent(asked.Params) {
		return noLeg{}, nil
	}

	// Members that the class does not have are refused.
	var p disaggParams
	strict := json.NewDecoder(bytes.NewReader(asked.Params))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&p); err != nil {
		return nil, openai.Invalid("disaggregated_params", "", "disaggregated_params: %v", err)
	}
	if style := string(p.Style); !absent(p.Style) && style != "0" && style != `"context_first"` {
		return nil, refuse("This engine has the schedule style context_first alone.")
	}
	switch strings.ToLower(p.RequestType) {
	case contextOnly:
		return x.readContext(c, p), nil
	case generateOnly:
		return x.readGeneration(c, p)
	case contextAndGen:
		return noLeg{}, nil
	}
	return nil, openai.Invalid("", "", "Unknown request type: %s. Must be context_only, generation_only or context_and_generation",
		p.RequestType)
}

// replacePrompt gives a chat a prompt of these tokens. Its answers depend on the prompt, so they are made again.
func (c *completion) replacePrompt(s *Sim, tokens []uint32) {
	arrived := c.choices[0].arrived
	c.prompts = len(tokens)
	c.requests = nil
	for i := range c.choices {
		c.addChoice(s, i, i, tokens, arrived)
	}
}

// readContext returns the leg of a request that computes a prompt. It ends with its first token, whatever its bound is.
func (x *contextFirst) readContext(c *completion, p disaggParams) leg {
	p.RequestType = contextOnly
	for _, r := range c.requests {
		r.MaxTokens = 1
		r.Keep = true
	}
	if p.RequestID == nil {
		id := rand.Int64N(math.MaxInt64-1<<53) + 1<<53
		p.ContextID = &id
	} else {
		// The router's id is the id of the request, too.
		p.ContextID = p.RequestID
	}
	return &contextPrefill{contextFirst: x, c: c, params: p}
}

// readGeneration returns the leg of a request whose prompt another engine has computed. The checks are the same
// as in tensorrt_llm/disaggregated_params.py and in the bindings below it.
func (x *contextFirst) readGeneration(c *completion, p disaggParams) (leg, error) {
	id := p.RequestID
	if id == nil {
		id = p.ContextID
	}
	switch {
	case id == nil:
		return nil, refuse("__init__(): incompatible function arguments. The request id of ContextPhaseParams must be an int.")
	case len(p.FirstTokens) == 0:
		return nil, refuse("Generation failed: first_gen_tokens has fewer tokens than the request has beams.")
	}

	// TensorRT-LLM checks the range of tokens before it embeds them.
	size := x.sim.cfg.Vocabulary.VocabSize()
	for _, token := range p.FirstTokens {
		if int64(token) >= int64(size) {
			return nil, refuse("Token ID is out of range.")
		}
	}

	// Without a state, no engine can be asked.
	var state contextState
	if p.State != nil {
		text, err := base64.StdEncoding.DecodeString(*p.State)
		if err != nil {
			return nil, refuse("Incorrect padding")
		}
		// A state of another program fails as a transfer.
		_ = json.Unmarshal(text, &state)
	}

	// The other tokens of the answer follow from the prompt and this one, as the tokens of one engine would.
	for i := range c.choices {
		token := p.FirstTokens[min(i, len(p.FirstTokens)-1)]
		c.choices[i].answer.begin = &given{token, string(x.sim.cfg.Vocabulary.AppendDecode(nil, token))}
	}
	c.fetched = cachedIn(p.Usage)
	return &contextDecode{contextFirst: x, c: c, id: *id, state: state}, nil
}

// cachedIn returns the cached tokens of the context request, which the usage of the answer repeats. A usage of another form has none.
func cachedIn(text json.RawMessage) int {
	var u struct {
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	_ = json.Unmarshal(text, &u)
	return max(0, u.Details.Cached)
}

// serve gives the blocks of a lease.
func (x *contextFirst) serve(ctx context.Context, q *question) (int, error) {
	// An engine that was started again at the same address has other blocks.
	if q.Engine != x.engine {
		return 0, errors.New("another engine")
	}
	held := x.sim.leases.take(q.ID)
	if held == nil {
		return 0, errors.New("no such request")
	}
	if q.Prompt != held.prompt {
		x.sim.leases.endLease(held, false)
		return 0, errors.New("another prompt")
	}
	return 0, x.sim.leases.transfer(ctx, held, held.tokens)
}

// contextPrefill is the request that computes a prompt. Streams have no parameters, and keep no blocks.
type contextPrefill struct {
	noLeg
	*contextFirst
	c *completion

	params disaggParams
	lease  *lease // nil until the answer
}

// complete keeps the blocks and writes their place into the answer. An answer that ends with its first token needs no second
// request, and keeps nothing: its reason is "stop".
func (p *contextPrefill) complete(context.Context) error {
	first, _ := p.c.choices[0].reads.read(0)
	p.params.FirstTokens = []uint32{first}
	p.params.Usage = json.RawMessage("{" + string(p.c.appendUsage(nil)[len(`"usage":{`):]))
	_, done := p.c.choices[0].progress()
	if done == engine.Stop {
		p.params.ContextID = nil
		return p.write()
	}

	// An id that is in use is an error of the request. The source of TensorRT-LLM does not define what happens with it.
	lease := p.sim.leases.open(strconv.FormatInt(*p.params.ContextID, 10), p.c)
	if lease == nil || !p.sim.leases.keep(lease) {
		return refuse("Generation failed: Error in kv cache transfer for context requests")
	}
	p.lease = lease

	// The router copies the state into the second request without reading it.
	state, err := json.Marshal(contextState{Engine: p.engine, Address: p.sim.transfer.Addr().(*net.TCPAddr).String()})
	if err != nil {
		return err
	}
	text := base64.StdEncoding.EncodeToString(state)
	p.params.State = &text
	return p.write()
}

// write writes the parameters for the first choice.
func (p *contextPrefill) write() error {
	// The numbers of ids keep all of their digits.
	text, err := json.Marshal(p.params)
	p.c.first = append([]byte(`,"disaggregated_params":`), text...)
	return err
}

// appendTo appends the tokens of the prompt.
func (p *contextPrefill) appendTo(answer []byte) []byte {
	return appendMember(answer, "prompt_token_ids", p.c.requests[0].Prompt)
}

// endLeg frees the blocks if no lease does.
func (p *contextPrefill) endLeg() {
	if p.lease == nil {
		p.sim.release(p.c.requests)
	}
}

// contextDecode is the request that decodes.
type contextDecode struct {
	noLeg
	*contextFirst
	c     *completion
	id    int64
	state contextState
}

// prepare fetches the blocks. If there are none, TensorRT-LLM waits for kv_transfer_timeout_ms.
func (d *contextDecode) prepare(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, d.sim.cfg.TransferTimeout)
	defer cancel()
	q := &question{Engine: d.state.Engine, ID: strconv.FormatInt(d.id, 10), Prompt: hashOf(d.c)}
	if _, err := d.sim.askPeer(bounded, d.state.Address, q); err != nil {
		d.sim.cfg.Logger.Warn("KV transfer failed", "request", d.id, "error", err)
		<-bounded.Done()
		return errContextTransfer
	}

	// The first token is known, so nothing of the prompt is computed.
	d.sim.deliver(d.c)
	return nil
}
