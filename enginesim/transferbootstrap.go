package enginesim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// bootstrap has the handshake of SGLang's --disaggregation-mode. Both engines get the same request at the same time, with the
// address of the prefill engine's bootstrap server and with the room in which both meet:
//
//	"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 4611686018427387904
//
//	role      waits for                                 then
//	prefill   the decode engine, in its room            computes the prompt, transfers it, and answers with one token
//	decode    the end of the transfer                   decodes
//
// An engine of one role serves nothing else. Errors have the status and the text of python/sglang/srt/disaggregation/prefill.py,
// decode.py and common/conn.py. SGLang waits for 300 s in each state.
type bootstrap struct{ sim *Sim }

// meeting is the place at which both engines of a request meet.
type meeting struct {
	room    int64
	address string
	id      string // of the request
}

// readLeg reads the bootstrap members. A request with several answers uses the first room.
func (b *bootstrap) readLeg(c *completion, body []byte) (leg, error) {
	var asked struct {
		Host oneOrMany[string] `json:"bootstrap_host"`
		Port oneOrMany[int]    `json:"bootstrap_port"`
		Room oneOrMany[int64]  `json:"bootstrap_room"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, openai.Invalid("", "", "bootstrap members: %v", err)
	}
	rooms := len(asked.Room.values)
	switch {
	case rooms == 0:
		return nil, &openai.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(
			"Invalid request: Disaggregated request received without bootstrap room id. recv_req.rid='%s'", c.id)}
	case asked.Room.list && rooms != len(c.requests) && rooms != len(c.requests)/c.req.N:
		return nil, openai.Invalid("bootstrap_room", "", "bootstrap_room has %d rooms for %d answers", rooms, len(c.requests))
	}

	// SGLang connects to the host None if the request has no host, and to its own port if the request has no port.
	m := meeting{room: asked.Room.first(0), id: c.id}
	m.address = net.JoinHostPort(asked.Host.first("None"), strconv.Itoa(asked.Port.first(fleet.DefaultBootstrapPort)))
	if b.sim.cfg.KVTransferRole == fleet.Decode {
		return &bootstrapDecode{bootstrap: b, meeting: m, c: c}, nil
	}

	// The prefill engine ignores the bound of the request. All of its answers, also streams, wait for the transfer.
	for _, r := range c.requests {
		r.MaxTokens = 1
	}
	c.hold = true
	return &bootstrapPrefill{bootstrap: b, meeting: m, c: c}, nil
}

// oneOrMany is a value, or a list with one for each answer of a batch. Null is none.
type oneOrMany[T any] struct {
	values []T
	list   bool
}

// UnmarshalJSON reads either form.
func (o *oneOrMany[T]) UnmarshalJSON(text []byte) error {
	o.list = text[0] == '['
	if o.list {
		return json.Unmarshal(text, &o.values)
	}
	if absent(text) {
		return nil
	}
	o.values = make([]T, 1)
	return json.Unmarshal(text, &o.values[0])
}

// first returns the first value, or def.
func (o *oneOrMany[T]) first(def T) T {
	if len(o.values) == 0 {
		return def
	}
	return o.values[0]
}

// serve is the bootstrap server: the decode engine enters its room, and gets the blocks when they are computed.
func (b *bootstrap) serve(ctx context.Context, q *question) (int, error) {
	// The decode engine may be here before the request to this engine is.
	x, err := b.sim.leases.await(ctx, q.ID)
	if err != nil {
		return 0, err
	}
	if q.Prompt != x.prompt {
		b.sim.leases.endLease(x, false)
		return 0, errors.New("another prompt")
	}
	return 0, b.sim.leases.transfer(ctx, x, x.tokens)
}

// failed returns the error of a request whose transfer failed. SGLang names the variables of its scheduler in it, which differ
// between both roles.
func (m *meeting) failed(what, names, format string, args ...any) error {
	return &openai.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf(
		"%s failed for request rank=0 %[2]s.rid='%[3]s' %[2]s.bootstrap_room=%[4]d "+
			"with exception KVTransferError(bootstrap_room=%[4]d): %[5]s",
		what, names, m.id, m.room, fmt.Sprintf(format, args...))}
}

// key returns the id of the lease of the room.
func (m *meeting) key() string { return strconv.FormatInt(m.room, 10) }

// bootstrapPrefill is the request to a prefill engine. Its states have SGLang's names:
//
//	state            event                            next state, or answer
//	Bootstrapping    the decode engine enters         WaitingForInput
//	Bootstrapping    TransferTimeout is over          "Prefill bootstrap failed"
//	WaitingForInput  the prompt is computed           Transferring
//	Transferring     the transfer is over             Success: one token
//	Transferring     the decode engine has left       "Prefill transfer failed"
type bootstrapPrefill struct {
	noLeg
	*bootstrap
	meeting
	c *completion

	lease *lease // nil if the room is taken
}

// prepare waits until the decode engine has entered the room.
func (p *bootstrapPrefill) prepare(ctx context.Context) error {
	p.lease = p.sim.leases.open(p.key(), p.c)
	if p.lease == nil {
		// SGLang does not notice two requests with one room, and mixes them up.
		return p.failed("Prefill bootstrap", "req", "another request has the room")
	}

	timeout := time.NewTimer(p.sim.cfg.TransferTimeout)
	defer timeout.Stop()
	select {
	case <-p.lease.met:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return p.failed("Prefill bootstrap", "req", "Request %d timed out after %.1fs in KVPoll.Bootstrapping",
			p.room, p.sim.cfg.TransferTimeout.Seconds())
	}
}

// complete waits for the end of the transfer. If the decode engine has left during the prefill, that has been computed in vain.
// The decode engine's connection bounds it.
func (p *bootstrapPrefill) complete(ctx context.Context) error {
	if p.sim.leases.keep(p.lease) {
		select {
		case <-p.lease.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if !p.lease.fetched {
		return p.failed("Prefill transfer", "req", "Decode instance could be dead, remote mooncake session is not alive")
	}
	return nil
}

// endLeg leaves the room, and frees the blocks.
func (p *bootstrapPrefill) endLeg() {
	if p.lease != nil {
		p.sim.leases.withdraw(p.lease)
	}
}

// bootstrapDecode is the request to a decode engine. It asks the bootstrap server once, and the answer comes with the blocks.
//
//	event                                   answer
//	the blocks are there                    the model's answer
//	no connection for connectFor            "Could not fetch prefill parallel info"
//	TransferTimeout is over                 "Decode transfer failed": timed out in KVPoll.WaitingForInput
//	the prefill request ends without them   "Decode transfer failed": it might be dead
type bootstrapDecode struct {
	noLeg
	*bootstrap
	meeting
	c *completion
}

// How often SGLang asks a bootstrap server that it cannot reach, and for how long.
const (
	connectAttempts = 15
	connectFor      = connectAttempts * time.Second
)

// prepare enters the room of the prefill engine, and waits for the blocks.
func (d *bootstrapDecode) prepare(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, d.sim.cfg.TransferTimeout)
	defer cancel()
	connecting, stop := context.WithTimeout(bounded, connectFor)
	defer stop()

	// Only the attempts to connect end with connecting. The last one is a failure, too.
	q := &question{ID: d.key(), Prompt: hashOf(d.c)}
	_, err := d.sim.reach(bounded, connecting, d.address, q)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		d.sim.cfg.Logger.Warn("KV transfer failed", "room", d.room, "error", err)
		return d.failure(err, bounded.Err() != nil)
	}

	// The first token of the answer comes with the transfer, so the prompt is not computed at all.
	d.sim.deliver(d.c)
	return nil
}

// failure returns the answer of SGLang for a transfer that failed with err, or that took too long.
func (d *bootstrapDecode) failure(err error, late bool) error {
	const names = "decode_req.req"
	var refused *refusedError
	switch {
	case errors.Is(err, errUnreachable):
		return &openai.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf(
			"Could not fetch prefill parallel info from %s after %d attempts", d.address, connectAttempts)}
	case late:
		return d.failed("Decode transfer", names, "Request %d timed out after %.1fs in KVPoll.WaitingForInput",
			d.room, d.sim.cfg.TransferTimeout.Seconds())
	case errors.As(err, &refused):
		return d.failed("Decode transfer", names, "Failed to get kvcache from prefill instance, it might be dead")
	}
	return d.failed("Decode transfer", names, "Lost connection with prefill instance (bootstrap_addr: %s)", d.address)
}
