package enginesim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

// transfer is what a request asks of the transfer of its prompt's KV cache, as vLLM's NixlConnector has it.
type transfer struct {
	keep   bool    // another engine will fetch the blocks: "do_remote_decode"
	leased bool    // the blocks of the first choice are under a lease
	from   *remote // fetch the blocks from there: "do_remote_prefill"
}

// remote names the blocks of a prompt in another engine. Engine and Request are that engine's ids of itself and of the request
// under which it keeps them; Host and Port are its side channel. Blocks has a list of block ids for each group of its KV cache,
// and TP is its degree of tensor parallelism.
type remote struct {
	Engine  string          `json:"remote_engine_id"`
	Request string          `json:"remote_request_id"`
	Host    string          `json:"remote_host"`
	Port    int             `json:"remote_port"`
	Blocks  json.RawMessage `json:"remote_block_ids"`
	TP      int             `json:"tp_size"`
}

// errEngineDead is the answer of vLLM's API server when its engine has ended.
var errEngineDead = &openai.Error{Status: http.StatusInternalServerError,
	Message: "EngineCore encountered an issue. See stack trace (above) for the root cause."}

// errInternal is vLLM's answer to a request whose transfer failed.
var errInternal = &openai.Error{Status: http.StatusInternalServerError, Message: "Internal server error"}

// readTransfer reads "kv_transfer_params". An engine without transfers ignores them, as vLLM does without a connector. One
// with transfers ends where blocks are to be fetched and none is named: an assertion of vLLM's scheduler fails then.
func (s *Sim) readTransfer(c *completion, body []byte) error {
	var asked struct {
		Params *struct {
			Decode  bool `json:"do_remote_decode"`
			Prefill bool `json:"do_remote_prefill"`
			remote
		} `json:"kv_transfer_params"`
	}
	// Unknown members of a body are ignored, as vLLM does.
	if s.leases == nil {
		return nil
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return openai.Invalid("kv_transfer_params", "", "kv_transfer_params: %v", err)
	}
	if asked.Params == nil {
		return nil
	}

	// An empty list of blocks is none, too.
	p := asked.Params
	var blocks [][]int
	if p.Prefill && (json.Unmarshal(p.Blocks, &blocks) != nil || len(blocks) == 0) {
		select {
		case s.crashed <- errors.New("the engine ends as vLLM does: do_remote_prefill without remote_block_ids"):
		default:
		}
		return errEngineDead
	}
	switch {
	case p.Prefill && (p.Engine == "" || p.Request == "" || p.Host == "" || p.Port == 0 || p.TP == 0):
		return errInternal
	case p.Prefill:
		c.transfer.from = &p.remote
	case p.Decode:
		// The other choices of a request with n > 1 use the same blocks of the prompt.
		c.transfer.keep = true
		c.requests[0].Keep = true
	}
	return nil
}

// fetch fetches the blocks of a prompt from the engine that has computed them, which takes the time of the transfer. Where
// that engine cannot be reached the answer is an error after TransferTimeout, as in vLLM.
func (s *Sim) fetch(ctx context.Context, c *completion) error {
	if c.transfer.from == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TransferTimeout)
	defer cancel()

	// A real engine waits in the same way: requests that it can compute go on meanwhile.
	prompt := c.requests[0].Prompt
	if err := s.leases.fetch(ctx, c.transfer.from, prompt); err != nil {
		s.cfg.Logger.Warn("KV transfer failed", "request", c.transfer.from.Request, "error", err)
		<-ctx.Done()
		return errInternal
	}
	// The blocks are free at the other engine from now on, somewhat earlier than at the end of a real transfer.
	select {
	case <-time.After(s.cfg.TransferBase + time.Duration(len(prompt))*s.cfg.TransferToken):
	case <-ctx.Done():
		return errInternal
	}

	// The core gives the blocks to the request when it admits it, and computes none of these tokens.
	c.requests[0].Delivered = len(prompt)
	s.metrics.transferred.Add(float64(len(prompt)))
	return nil
}

// giveUp ends what is left of a request after its answer, or after its client has left.
func (s *Sim) giveUp(c *completion) {
	s.cancel(c.requests)
	if c.transfer.keep && !c.transfer.leased {
		s.release(c.requests[0])
	}
}

// appendTransfer appends the parameters of a transfer to an answer, where the request asked for them.
func (s *Sim) appendTransfer(answer []byte, c *completion) []byte {
	if !c.transfer.keep {
		return answer
	}
	// From here on the lease frees the blocks, and no longer giveUp.
	c.transfer.leased = true
	params, err := json.Marshal(s.leases.grant(c.id, c.requests[0]))
	if err != nil {
		panic(err) // numbers and texts alone
	}
	answer = append(answer[:len(answer)-1], `,"kv_transfer_params":`...)
	return append(append(answer, params...), '}')
}

// leases are the blocks that are kept for other engines, as a prefill worker keeps them. Decode workers have them too, because
// each engine can do both, as vLLM's role kv_both. Their number is bounded by that of the blocks: each lease has at least one.
//
//	event                               effect
//	the answer of a prefill request     a lease, which lasts for Config.Lease
//	another engine fetches the blocks   the lease ends, and the blocks are free
//	the lease's time is over            the same; a later fetch fails
type leases struct {
	sim    *Sim
	engine string // the id of this engine
	client *http.Client

	mu   sync.Mutex
	byID map[string]*lease // guarded by mu
}

// lease is a prompt whose blocks are kept.
type lease struct {
	request *engine.Request // done, and keeps its blocks
	expiry  *time.Timer     // ends the lease; stopped when it ends before
}

// newLeases returns the leases of an engine that has none yet. Connections are not kept: transfers are rare in tests.
func newLeases(s *Sim) *leases {
	return &leases{
		sim: s, engine: fmt.Sprintf("%016x", rand.Uint64()), byID: map[string]*lease{},
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// grant keeps the blocks of a request that is done, and returns the parameters of the transfer in vLLM's form.
func (l *leases) grant(id string, r *engine.Request) map[string]any {
	// The id is that of the engine's internal request, which is unique also where clients repeat theirs.
	at := l.sim.transfer.Addr().(*net.TCPAddr)
	id += "-0-" + strconv.FormatUint(rand.Uint64(), 16)
	params := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false,
		"remote_block_ids": [][]int32{r.Blocks()}, "remote_engine_id": l.engine, "remote_request_id": id,
		"remote_host": at.IP.String(), "remote_port": at.Port, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
		"remote_num_tokens": len(r.Prompt), "remote_blocks_expiry_time": nil, "transfer_mode": "pull",
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.byID[id] = &lease{request: r, expiry: time.AfterFunc(l.sim.cfg.Lease, func() {
		if l.end(id) != nil {
			l.sim.metrics.expired.Inc()
		}
	})}
	return params
}

// end ends a lease and frees its blocks. It returns the request, or nil where there is no such lease (any more).
func (l *leases) end(id string) *engine.Request {
	// The lock is not held while the engine's is: grant is called without it, and end by timers.
	l.mu.Lock()
	held := l.byID[id]
	delete(l.byID, id)
	l.mu.Unlock()
	if held == nil {
		return nil
	}
	held.expiry.Stop()
	l.sim.release(held.request)
	return held.request
}

// serve serves the side channel until ctx ends: GET /blocks?engine=…&request=…&prompt=… ends a lease. The hash of the prompt
// stands for the blocks' content: real engines would decode from the blocks of another prompt without noticing.
func (l *leases) serve(ctx context.Context, at net.Listener) error {
	// A lease ends also where the prompts differ: the other engine's request has failed then.
	handle := func(w http.ResponseWriter, r *http.Request) {
		asked := r.URL.Query()
		if asked.Get("engine") != l.engine {
			http.Error(w, "another engine", http.StatusNotFound)
			return
		}
		held := l.end(asked.Get("request"))
		if held == nil {
			http.Error(w, "no such lease", http.StatusNotFound)
			return
		}
		if asked.Get("prompt") != hashOf(held.Prompt) {
			http.Error(w, "another prompt", http.StatusConflict)
		}
	}
	server := &http.Server{Handler: http.HandlerFunc(handle), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(at); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve KV transfers: %w", err)
	}
	return nil
}

// fetch asks another engine for the blocks of a prompt.
func (l *leases) fetch(ctx context.Context, from *remote, prompt []uint32) error {
	query := url.Values{"engine": {from.Engine}, "request": {from.Request}, "prompt": {hashOf(prompt)}}
	address := net.JoinHostPort(from.Host, strconv.Itoa(from.Port))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/blocks?"+query.Encode(), nil)
	if err != nil {
		return err
	}

	answer, err := l.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		return fmt.Errorf("%s answers %d: %s", address, answer.StatusCode, reason)
	}
	return nil
}

// hashOf returns the hash of a prompt as text.
func hashOf(prompt []uint32) string {
	return strconv.FormatUint(uint64(blockhash.Hash(prompt, 0)), 16)
}
