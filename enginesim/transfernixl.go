package enginesim

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// nixl has the handshake of vLLM's NixlConnector. The requests come one after the other:
//
//	request   kv_transfer_params           engine
//	prefill   "do_remote_decode": true     computes the prompt, and answers with the place of its blocks
//	decode    these, from the answer       fetches the blocks
//
// Engines have both parts, as vLLM's role kv_both.
type nixl struct {
	sim    *Sim
	engine string // the id of this engine
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

// readLeg reads "kv_transfer_params". The engine ends if blocks are to be fetched and none is named: an assertion of vLLM's
// scheduler fails then.
func (n *nixl) readLeg(c *completion, body []byte) (leg, error) {
	var asked struct {
		Params *struct {
			Decode  bool `json:"do_remote_decode"`
			Prefill bool `json:"do_remote_prefill"`
			remote
		} `json:"kv_transfer_params"`
	}
	// Unknown members of a body are ignored, as vLLM does.
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, openai.Invalid("kv_transfer_params", "", "kv_transfer_params: %v", err)
	}
	if asked.Params == nil {
		return noLeg{}, nil
	}

	// An empty list of blocks is none, too.
	p := asked.Params
	var blocks [][]int
	if p.Prefill && (json.Unmarshal(p.Blocks, &blocks) != nil || len(blocks) == 0) {
		return nil, n.sim.crash("do_remote_prefill without remote_block_ids")
	}
	switch {
	case p.Prefill && (p.Engine == "" || p.Request == "" || p.Host == "" || p.Port == 0 || p.TP == 0):
		return nil, errInternal
	case p.Prefill:
		return &nixlDecode{nixl: n, c: c, from: &p.remote}, nil
	case p.Decode:
		// The other choices of a request with n > 1 use the same blocks of the prompt.
		c.requests[0].Keep = true
		return &nixlPrefill{nixl: n, c: c}, nil
	}
	return noLeg{}, nil
}

// serve ends a lease. It ends also if the prompts differ: the other engine's request has failed then.
func (n *nixl) serve(_ context.Context, q *question) (int, error) {
	// An engine that was started again at the same address has other blocks.
	if q.Engine != n.engine {
		return 0, errors.New("another engine")
	}
	x := n.sim.leases.take(q.ID)
	if x == nil {
		return 0, errors.New("no such lease")
	}
	n.sim.leases.endLease(x, true)
	if q.Prompt != x.prompt {
		return 0, errors.New("another prompt")
	}
	return 0, nil
}

// nixlPrefill is the request to a prefill engine. Its answer has the parameters of the transfer; streams have none, as in vLLM.
type nixlPrefill struct {
	noLeg
	*nixl
	c *completion

	lease  *lease // nil until the answer
	blocks []int32
}

// complete keeps the blocks for the lease's time.
func (p *nixlPrefill) complete(context.Context) error {
	// The core changes the list when the lease ends, which may be before the answer is written.
	p.blocks = slices.Clone(p.c.requests[0].Blocks())
	// The id is the id of the engine's internal request, which is unique even if clients repeat theirs.
	x := p.sim.leases.open(p.c.id+"-0-"+strconv.FormatUint(rand.Uint64(), 16), p.c)
	if x == nil || !p.sim.leases.keep(x) {
		return errInternal // the engine stops
	}
	p.lease = x
	return nil
}

// appendTo appends the parameters of the transfer in vLLM's form.
func (p *nixlPrefill) appendTo(answer []byte) []byte {
	at := p.sim.transfer.Addr().(*net.TCPAddr)
	r := p.c.requests[0]
	return appendMember(answer, "kv_transfer_params", map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false,
		"remote_block_ids": [][]int32{p.blocks}, "remote_engine_id": p.engine, "remote_request_id": p.lease.id,
		"remote_host": at.IP.String(), "remote_port": at.Port, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
		"remote_num_tokens": len(r.Prompt), "remote_blocks_expiry_time": nil, "transfer_mode": "pull",
	})
}

// endLeg frees the blocks if no lease does.
func (p *nixlPrefill) endLeg() {
	if p.lease == nil {
		p.sim.release(p.c.requests)
	}
}

// nixlDecode is the request to a decode engine.
type nixlDecode struct {
	noLeg
	*nixl
	c    *completion
	from *remote
}

// prepare fetches the blocks of the prompt, which takes the time of the transfer. If the other engine cannot be reached, the
// answer is an error after TransferTimeout, as in vLLM.
func (d *nixlDecode) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.sim.cfg.TransferTimeout)
	defer cancel()

	// A real engine waits in the same way: requests that it can compute go on meanwhile.
	tokens := len(d.c.requests[0].Prompt)
	address := net.JoinHostPort(d.from.Host, strconv.Itoa(d.from.Port))
	if _, err := d.sim.askPeer(ctx, address, &question{Engine: d.from.Engine, ID: d.from.Request, Prompt: hashOf(d.c)}); err != nil {
		d.sim.cfg.Logger.Warn("KV transfer failed", "request", d.from.Request, "error", err)
		<-ctx.Done()
		return errInternal
	}
	// The blocks are free at the other engine from now on, somewhat earlier than at the end of a real transfer.
	if backoff.Sleep(ctx, d.sim.transferTime(tokens)) != nil {
		return errInternal
	}

	// The core gives the blocks to the request when it admits it, and computes none of these tokens.
	d.c.requests[0].Delivered = tokens
	d.sim.metrics.fetched(tokens)
	return nil
}
