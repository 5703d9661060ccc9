package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// connector is one way in which engines transfer KV caches: the members of requests and answers for it, and the questions
// that engines ask each other on their side channels.
//
//	transfer                 engine         file
//	fleet.TransferNixl       vLLM           transfernixl.go
//	fleet.TransferP2P        vLLM           transferp2p.go
//	fleet.TransferBootstrap  SGLang         transferbootstrap.go
//	fleet.TransferContext    TensorRT-LLM   transfercontext.go
type connector interface {
	// readLeg reads the members about the transfer from a request's body. It returns the error that the engine answers.
	readLeg(c *completion, body []byte) (leg, error)
	// serve answers another engine. ctx ends when that engine stops waiting, or this one stops. The result is a number of blocks.
	serve(ctx context.Context, q *question) (int, error)
}

// newConnector returns the connector of an engine.
func newConnector(s *Sim) connector {
	switch s.cfg.KVTransferKind {
	case fleet.TransferP2P:
		return &p2p{sim: s}
	case fleet.TransferBootstrap:
		return &bootstrap{sim: s}
	case fleet.TransferContext:
		return &contextFirst{sim: s, engine: randomID()}
	}
	return &nixl{sim: s, engine: randomID()}
}

// leg is the part of one request in a transfer: most transfers have a request to a prefill engine and one to a decode engine.
// Methods return the error that the engine answers.
type leg interface {
	// prepare runs before the sequences of the request are submitted.
	prepare(ctx context.Context) error
	// complete runs when all tokens are computed, before the answer is written. It does not run for streams, unless
	// completion.hold is set.
	complete(ctx context.Context) error
	// appendTo appends members to the object of an answer.
	appendTo(answer []byte) []byte
	// endLeg runs once, after the answer or after the client has left. It frees the blocks that no lease has.
	endLeg()
}

// noLeg is the leg of a request without a transfer.
type noLeg struct{}

func (noLeg) prepare(context.Context) error  { return nil }
func (noLeg) complete(context.Context) error { return nil }
func (noLeg) appendTo(answer []byte) []byte  { return answer }
func (noLeg) endLeg()                        {}

// readTransfer sets the leg of a request. An engine without transfers ignores their members, as vLLM does without a connector.
func (s *Sim) readTransfer(c *completion, body []byte) (err error) {
	if s.connector == nil {
		return nil
	}
	l, err := s.connector.readLeg(c, body)
	if err != nil {
		return err
	}
	c.leg = l
	return nil
}

// appendMember appends a member to an object of JSON. The value must be one that JSON can have.
func appendMember(object []byte, name string, value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // a type of this package that JSON does not have
	}
	object = append(object[:len(object)-1], ',', '"')
	object = append(append(append(object, name...), `":`...), text...)
	return append(object, '}')
}

// transferTime returns how long the transfer of so many tokens takes.
func (s *Sim) transferTime(tokens int) time.Duration {
	return s.cfg.TransferBase + time.Duration(tokens)*s.cfg.TransferToken
}

// promptHashes returns the hashes of the complete blocks of a prompt that the core looks up: at least one token is computed.
func (s *Sim) promptHashes(c *completion) []kvevent.EngineHash {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := c.requests[0]
	return s.engine.PromptHashes(r)[:(len(r.Prompt)-1)/s.cfg.Engine.BlockSize]
}

// cachedBlocks returns how many of the first blocks of a chain the engine has.
func (s *Sim) cachedBlocks(hashes []kvevent.EngineHash) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.Cached(hashes)
}

// hashOf returns the hash of the prompts of a request as text. It stands for the content of their blocks: real engines would
// decode from the blocks of another prompt without noticing.
func hashOf(c *completion) string {
	var sum uint64
	for i := 0; i < len(c.requests); i += c.req.N {
		sum = uint64(blockhash.Hash(c.requests[i].Prompt, sum))
	}
	return strconv.FormatUint(sum, 16)
}

// question is an engine's question to another one on the side channel, in JSON. Each connector has some of the members.
type question struct {
	// Engine is the id of the engine that is asked, and ID the id of the blocks.
	Engine string `json:"engine,omitempty"`
	ID     string `json:"id,omitempty"`
	// Prompt is the hash of the prompt that the blocks must belong to.
	Prompt string `json:"prompt,omitempty"`
	// Blocks are the hashes of the blocks of p2p, Before is the number of blocks of the prompt in front of them, and Seed
	// is the seed of these hashes. Cached asks for blocks of the prefix cache.
	Blocks []kvevent.EngineHash `json:"blocks,omitempty"`
	Before int                  `json:"before,omitempty"`
	Seed   uint64               `json:"seed,omitempty"`
	Cached bool                 `json:"cached,omitempty"`
}

// Bounds of the side channel, in bytes. The longest question has the hashes of a prompt.
const (
	maxQuestion = 16 << 20
	maxReply    = 1 << 10
)

// serveTransfers serves the side channel until ctx ends, and waits for its requests. Then all leases end.
func (s *Sim) serveTransfers(ctx context.Context, at net.Listener) error {
	handle := func(w http.ResponseWriter, r *http.Request) {
		var q question
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxQuestion)).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		blocks, err := s.connector.serve(r.Context(), &q)
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		_, _ = io.WriteString(w, strconv.Itoa(blocks))
	}
	server := &http.Server{Handler: http.HandlerFunc(handle), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}

	// The contexts of the requests end with ctx, so Shutdown waits for little.
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		left, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(left) != nil {
			_ = server.Close()
		}
	})
	if err := server.Serve(at); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve KV transfers: %w", err)
	}
	<-stopped
	s.leases.close()
	return nil
}

// newTransferClient returns a client of the side channels of other engines. Connections are not kept, because transfers are rare in
// tests. An attempt to connect takes 5 s at most, as in SGLang, and the context of a request bounds the rest.
func newTransferClient() *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
}

// refusedError is the answer of an engine that does not give the blocks.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

// errUnreachable is the error for an engine to which there is no connection.
var errUnreachable = errors.New("no connection")

// askPeer asks the engine whose side channel has that address, until ctx ends. Its errors are a *refusedError, errUnreachable, or
// another one if the connection ends.
func (s *Sim) askPeer(ctx context.Context, address string, q *question) (blocks int, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/", bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("%w to %q: %w", errUnreachable, address, err)
	}

	// Only a failure before there is a connection means that the other engine has not got the question.
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
	answer, err := s.client.Do(r.WithContext(httptrace.WithClientTrace(ctx, trace)))
	switch {
	case err != nil && !connected:
		return 0, fmt.Errorf("%w to %s: %w", errUnreachable, address, err)
	case err != nil:
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxReply))
	switch {
	case err != nil:
		return 0, err
	case answer.StatusCode != http.StatusOK:
		return 0, &refusedError{fmt.Sprintf("%s answers %d: %s", address, answer.StatusCode, text)}
	}
	return strconv.Atoi(string(text))
}

// reach is ask with further attempts to connect, until connecting ends. The last one is a failure, too.
func (s *Sim) reach(ctx, connecting context.Context, address string, q *question) (blocks int, err error) {
	blocks, err = s.askPeer(ctx, address, q)
	for errors.Is(err, errUnreachable) && backoff.Sleep(connecting, reconnect) == nil {
		blocks, err = s.askPeer(ctx, address, q)
	}
	return blocks, err
}

// reconnect is the pause between two attempts to connect.
const reconnect = 20 * time.Millisecond

// deliver has the prompts of a completion computed elsewhere: all of their blocks have come, and nothing of them is computed.
func (s *Sim) deliver(c *completion) {
	for _, r := range c.requests {
		r.Delivered = len(r.Prompt)
	}
	s.metrics.fetched(c.prompts)
}

// crash ends the engine, as an exception in the scheduler of vLLM does.
func (s *Sim) crash(reason string) error {
	select {
	case s.crashed <- errors.New("the engine ends as vLLM does: " + reason):
	default:
	}
	return errEngineDead
}

// errEngineDead is the answer of vLLM's API server when its engine has ended.
var errEngineDead = &openai.Error{Status: http.StatusInternalServerError,
	Message: "EngineCore encountered an issue. See stack trace (above) for the root cause."}

// errInternal is vLLM's answer to a request whose transfer failed.
var errInternal = &openai.Error{Status: http.StatusInternalServerError, Message: "Internal server error"}
