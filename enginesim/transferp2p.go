package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// p2p has the handshake of vLLM's OffloadingConnector with a tier p2p. The requests to both engines come at the same time, in any
// order, and name one transfer:
//
//	kv_transfer_params                                                  engine
//	"remote_decoder": {"kv_request_id"}                                 computes the prompt, and keeps its complete blocks
//	"remote_prefiller": {"kv_request_id", "remote_host", "remote_port"} waits for these blocks, and computes the rest
//	"remote_kv_source": the same members                                copies the other engine's cached part of the prompt
//
// As in vllm/v1/kv_offload/tiering/p2p/manager.py, no failure of a transfer is one of the request: the engine computes the
// blocks that it has not got. Members that are missing switch the transfer off, and members of a wrong type end the scheduler.
// A prompt that no engine fetches is kept for 60 s. vLLM keeps it in the memory of the host, and the simulator in its one
// cache.
type p2p struct{ sim *Sim }

// p2pSource is an engine from which blocks are fetched.
type p2pSource struct {
	id      string // of the transfer
	address string
	cached  bool // fetch the blocks in its cache: no request to it computes the prompt
}

// readLeg reads "kv_transfer_params".
func (p *p2p) readLeg(c *completion, body []byte) (leg, error) {
	var asked struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, openai.Invalid("kv_transfer_params", "", "kv_transfer_params: %v", err)
	}
	l := &p2pLeg{p2p: p, c: c}
	if absent(asked.Params) {
		return l, nil
	}
	var params map[string]json.RawMessage
	if json.Unmarshal(asked.Params, &params) != nil {
		return nil, openai.Invalid("kv_transfer_params", "", "kv_transfer_params: Input should be a valid dictionary")
	}

	source, err := p.readSource(params)
	if err != nil {
		return nil, err
	}
	l.source = source

	decoder := params["remote_decoder"]
	if absent(decoder) {
		return l, nil
	}
	var role map[string]json.RawMessage
	if json.Unmarshal(decoder, &role) != nil {
		return nil, p.sim.crash("remote_decoder is no dict")
	}
	// Without an id nothing is kept.
	l.keep, err = p.readID(role)
	return l, err
}

// readSource returns the source of a transfer, or nil if there is none or if a member is missing. remote_prefiller comes
// before remote_kv_source.
func (p *p2p) readSource(params map[string]json.RawMessage) (*p2pSource, error) {
	text, cached := params["remote_prefiller"], false
	if absent(text) {
		text, cached = params["remote_kv_source"], true
	}
	if isFalse(text) {
		return nil, nil
	}

	// A role with missing members is no source.
	var role map[string]json.RawMessage
	if json.Unmarshal(text, &role) != nil {
		return nil, p.sim.crash("remote_prefiller or remote_kv_source is no dict")
	}
	if isFalse(role["remote_host"]) || isFalse(role["remote_port"]) || isFalse(role["kv_request_id"]) {
		return nil, nil
	}

	// vLLM's scheduler opens a socket to tcp://host:port, which refuses a value that is no port.
	host, _ := scalar(role["remote_host"])
	digits, _ := scalar(role["remote_port"])
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || host == "" {
		return nil, p.sim.crash("remote_host and remote_port are no address")
	}
	id, err := p.readID(role)
	if err != nil {
		return nil, err
	}
	return &p2pSource{id: id, address: net.JoinHostPort(host, digits), cached: cached}, nil
}

// readID returns the id of a transfer, or "" if there is none. Ids are keys of a dict in vLLM.
func (p *p2p) readID(role map[string]json.RawMessage) (string, error) {
	value := role["kv_request_id"]
	if isFalse(value) {
		return "", nil
	}
	id, ok := scalar(value)
	if !ok {
		return "", p.sim.crash("kv_request_id is a dict or a list")
	}
	return id, nil
}

// absent reports whether a value is missing or null: Python's None.
func absent(value json.RawMessage) bool { return len(value) == 0 || string(value) == "null" }

// isFalse reports whether Python takes a value for false: vLLM tests most members with "if not value".
func isFalse(value json.RawMessage) bool {
	var number float64
	if json.Unmarshal(value, &number) == nil {
		return number == 0 // null leaves it at 0
	}
	var packed bytes.Buffer
	_ = json.Compact(&packed, value)
	return slices.Contains([]string{"", "false", `""`, "{}", "[]"}, packed.String())
}

// scalar returns the text of a value that is neither a dict nor a list.
func scalar(value json.RawMessage) (text string, ok bool) {
	if json.Unmarshal(value, &text) == nil {
		return text, true
	}
	return string(value), len(value) > 0 && value[0] != '{' && value[0] != '['
}

// errSeed is the error for hashes of another seed: both engines must have the same PYTHONHASHSEED.
var errSeed = errors.New("another hash seed")

// serve gives blocks of the cache, or blocks of a request that computes them for the other engine.
func (p *p2p) serve(ctx context.Context, q *question) (int, error) {
	if q.Seed != p.sim.cfg.Engine.HashSeed {
		return 0, errSeed
	}
	if q.Cached {
		return p.sim.cachedBlocks(q.Blocks), nil
	}

	x, err := p.sim.leases.await(ctx, q.ID)
	if err != nil {
		return 0, err
	}
	// vLLM fails a transfer as a whole if the request has not computed all blocks that the other engine wants.
	has := p.sim.allHashes(x)
	if q.Before < 0 || q.Before > len(has) || !slices.Equal(q.Blocks, has[q.Before:min(len(has), q.Before+len(q.Blocks))]) {
		p.sim.leases.endLease(x, false)
		return 0, errors.New("another prompt")
	}
	return len(q.Blocks), p.sim.leases.transfer(ctx, x, len(q.Blocks)*p.sim.cfg.Engine.BlockSize)
}

// allHashes returns the hashes of all complete blocks of a lease's prompt.
func (s *Sim) allHashes(x *lease) []kvevent.EngineHash {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.PromptHashes(x.requests[0])
}

// p2pLeg is a request to an engine. It may fetch blocks, keep blocks, or both.
type p2pLeg struct {
	noLeg
	*p2p
	c *completion

	source *p2pSource // nil if nothing is fetched
	keep   string     // id of the transfer for which blocks are kept; empty for none
	lease  *lease     // nil if no blocks are kept
}

// prepare begins to keep the blocks of the prompt, and fetches the blocks that the engine has not got.
func (l *p2pLeg) prepare(ctx context.Context) error {
	// A second request with the same id keeps nothing.
	if l.keep != "" {
		l.lease = l.sim.leases.open(l.keep, l.c)
	}
	// An answer with the probabilities of the prompt needs all of it to be computed.
	if l.source == nil || l.c.requests[0].WholePrompt {
		return nil
	}

	// If the cache has all of it, nothing is fetched. The other engine then keeps the blocks until its lease ends, as in vLLM.
	hashes := l.sim.promptHashes(l.c)
	local := l.sim.cachedBlocks(hashes)
	if local == len(hashes) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, l.sim.cfg.TransferTimeout)
	defer cancel()
	blocks, err := l.fetch(bounded, hashes, local)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		l.sim.cfg.Logger.Warn("KV transfer failed, the prompt is computed", "request", l.source.id, "error", err)
		return nil
	}

	// The core takes fetched blocks as computed. The blocks in front of it are still in the cache, or are counted as fetched.
	if blocks > local {
		size := l.sim.cfg.Engine.BlockSize
		l.c.requests[0].Delivered = blocks * size
		l.c.fetched = blocks * size
		l.sim.metrics.fetched((blocks - local) * size)
		l.sim.metrics.tierBytes.Add(float64((blocks - local) * size * bytesPerToken))
	}
	return nil
}

// fetch fetches blocks of a prompt, of which the engine has the first ones. It returns how many of the first ones it has then.
func (l *p2pLeg) fetch(ctx context.Context, hashes []kvevent.EngineHash, local int) (int, error) {
	q := &question{ID: l.source.id, Seed: l.sim.cfg.Engine.HashSeed, Blocks: hashes[local:], Before: local}
	if l.source.cached {
		q = &question{Seed: q.Seed, Blocks: hashes, Cached: true}
	}

	// vLLM's sockets connect again and again, until the handshake's time is over.
	blocks, err := l.sim.reach(ctx, ctx, l.source.address, q)
	switch {
	case err != nil:
		return 0, err
	case blocks < 0 || blocks > len(q.Blocks):
		return 0, fmt.Errorf("%s has %d of %d blocks", l.source.address, blocks, len(q.Blocks))
	case !l.source.cached:
		return local + blocks, nil
	case blocks <= local:
		return local, nil
	}
	return blocks, backoff.Sleep(ctx, l.sim.transferTime((blocks-local)*l.sim.cfg.Engine.BlockSize))
}

// appendTo appends the parameters of vLLM's answers, which are always null: no engine has a result for the router.
func (l *p2pLeg) appendTo(answer []byte) []byte {
	return appendMember(answer, "kv_transfer_params", nil)
}

// endLeg keeps the blocks of a prompt that was computed, and frees others. It does so after the answer, also after a stream.
func (l *p2pLeg) endLeg() {
	if l.lease != nil && !(l.c.allDone() && l.sim.leases.keep(l.lease)) {
		l.sim.leases.withdraw(l.lease)
	}
}
