package direct

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/nixl/transfer"
)

// mostBytes bounds the blocks of one READ, so that a fetch of many blocks that fails has some of them.
const mostBytes = 64 << 20

const (
	// callTime bounds the calls that follow a transfer.
	callTime = 200 * time.Millisecond
	// askPause is the time between two questions whether an agent has ended, and asks how many there are.
	askPause = 20 * time.Millisecond
	asks     = 3
)

// leastTime is the time that must be left to begin a transfer, because one that comes to its end costs a fence.
const leastTime = 100 * time.Millisecond

var (
	// errRoom is the error of a peer that holds as many blocks for others as it may.
	errRoom = errors.New("the peer has no room for more leases")
	// errTime is the error of a fetch whose other blocks would perhaps not come in time.
	errTime = errors.New("the time does not suffice for another transfer")
)

// Peer fetches blocks from one node. Create it with [Direct.Peer].
type Peer struct {
	d       *Direct
	address string
	client  *stream.Client

	// joining is held while the peer is added to the child, or removed from it.
	joining  sync.Mutex
	agent    string // guarded by joining; the one whose endpoint this is
	endpoint []byte // guarded by joining
	epoch    uint64 // guarded by joining; of the child that has the agent; 0 is none

	reads sync.WaitGroup // that run

	mu     sync.Mutex
	closed bool            // guarded by mu; no read begins
	pauses backoff.Backoff // guarded by mu; after failures
	until  time.Time       // guarded by mu; the end of a pause
	isNIXL bool            // guarded by mu; the last fetch came by NIXL
	reason error           // guarded by mu; why it did not
	logged string          // guarded by mu; the kind of reason that was logged last
}

// Peer returns the peer at an address, which is for logs. client has a connection to it, and stays the caller's.
func (d *Direct) Peer(address string, client *stream.Client) *Peer {
	p := &Peer{d: d, address: address, client: client, pauses: backoff.Backoff{Min: leastPause, Max: mostPause}}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.peers[p] = struct{}{}
	return p
}

// Close removes the peer from the child, after the transfers that run, of which each has its timeout. Later fetches use the stream alone.
func (p *Peer) Close() {
	p.d.mu.Lock()
	delete(p.d.peers, p)
	p.d.mu.Unlock()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.reads.Wait()

	h, epoch, err := p.d.running()
	if err != nil {
		return
	}
	p.joining.Lock()
	defer p.joining.Unlock()
	if p.epoch == epoch {
		ctx, cancel := context.WithTimeout(context.Background(), callTime)
		defer cancel()
		_ = h.RemovePeer(ctx, p.agent) // the child replaces itself before such peers are too many
	}
}

// stats returns the state.
func (p *Peer) stats() PeerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStats{Address: p.address}
	if p.reason != nil {
		s.Transport, s.Reason = "tcp", p.reason.Error()
	}
	if p.isNIXL {
		s.Transport = "nixl"
	}
	return s
}

// Fetch fetches blocks into slots of the arena, as [stream.Client.Fetch] describes: when it returns, no more bytes arrive in dst. To cancel
// ctx does not stop a transfer by NIXL, because that costs a fence: Fetch waits for it, for Config.Timeout at most.
func (p *Peer) Fetch(ctx context.Context, keys []block.Key, dst [][]byte) []stream.Result {
	results := make([]stream.Result, len(keys))
	settled, err := p.fetchBlocks(ctx, keys, dst, results)
	p.ended(ctx, err)

	var left []int
	var leftKeys []block.Key
	var leftDst [][]byte
	for i := range keys {
		if i >= settled || errors.Is(results[i].Err, stream.ErrDamaged) {
			left = append(left, i)
			leftKeys = append(leftKeys, keys[i])
			leftDst = append(leftDst, dst[i])
		}
	}
	if len(left) == 0 {
		return results
	}

	ok := true
	for k, r := range p.client.Fetch(ctx, leftKeys, leftDst) {
		results[left[k]] = r
		ok = ok && (r.Err == nil || errors.Is(r.Err, stream.ErrMissing))
	}
	if ok {
		p.d.counts.tcpOK.Add(1)
	} else {
		p.d.counts.tcpFailed.Add(1)
	}
	return results
}

// errPausing is the error within the pause after a failure, and after Close. It is not noted.
var errPausing = errors.New("NIXL is not used now")

// fetchBlocks fetches blocks by NIXL. It returns how many of the first ones have a result: the others, and damaged ones, are still to
// be fetched.
func (p *Peer) fetchBlocks(ctx context.Context, keys []block.Key, dst [][]byte, results []stream.Result) (settled int, err error) {
	if !p.begin() {
		return 0, errPausing
	}
	defer p.reads.Done()

	// The other half of the time is for the stream.
	until := time.Now().Add(p.d.cfg.Timeout)
	if deadline, ok := ctx.Deadline(); ok {
		until = minTime(until, time.Now().Add(time.Until(deadline)/2))
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	most := min(max(mostBytes/p.d.cfg.Layout.Bytes(), 1), mostKeys)
	var longest time.Duration
	for settled < len(keys) {
		began := time.Now()
		if until.Sub(began) < max(leastTime, 2*longest) {
			return settled, errTime
		}
		to := min(settled+most, len(keys))
		n, err := p.readSome(ctx, keys[settled:to], dst[settled:to], results[settled:to])
		settled += n
		longest = max(longest, time.Since(began))
		if err != nil {
			return settled, err
		}
	}
	return settled, nil
}

// begin enters a read, and reports whether NIXL is used now.
func (p *Peer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || time.Now().Before(p.until) {
		return false
	}
	p.reads.Add(1)
	return true
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// readSome fetches blocks by one lease and one transfer. Fewer than all may have a result, also without an error.
func (p *Peer) readSome(ctx context.Context, keys []block.Key, dst [][]byte, results []stream.Result) (settled int, err error) {
	local := make([]int32, len(dst))
	for i := range dst {
		slot, ok := p.d.cfg.Arena.Index(dst[i])
		if !ok || len(dst[i]) != p.d.cfg.Layout.Bytes() {
			return 0, errors.New("a slice is no slot of the store")
		}
		local[i] = int32(slot)
	}
	h, epoch, err := p.d.running()
	if err != nil {
		return 0, err
	}
	a, err := p.askSlots(ctx, keys)
	if err != nil {
		return 0, err
	}
	if a.Lease != 0 {
		defer p.done(ctx, a.Lease)
	}
	if len(a.Slots) == 0 {
		return 0, errRoom
	}
	if err := p.join(ctx, h, epoch, &a); err != nil {
		return 0, err
	}

	var from, to []int32
	for i, slot := range a.Slots {
		if slot != missing {
			from = append(from, slot)
			to = append(to, local[i])
		}
	}
	if len(from) > 0 {
		if err := p.transfer(ctx, h, &a, from, to); err != nil {
			return 0, err
		}
	}
	return len(a.Slots), compare(&a, dst, results)
}

// askSlots asks the peer for the slots of blocks.
func (p *Peer) askSlots(ctx context.Context, keys []block.Key) (a answer, err error) {
	p.joining.Lock()
	has := p.agent
	p.joining.Unlock()
	message, err := json.Marshal(newRead(has, keys))
	if err != nil {
		return a, err
	}
	reply, err := p.client.Call(ctx, message)
	if err != nil {
		return a, err
	}
	return parseAnswer(reply, len(keys))
}

// done ends a lease. If that does not reach the peer, the lease ends by its time.
func (p *Peer) done(ctx context.Context, id uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	message, err := json.Marshal(&request{Op: opDone, Lease: id})
	if err == nil {
		_, _ = p.client.Call(ctx, message)
	}
}

// transfer reads blocks of the peer. When it returns, no more bytes arrive in their slots.
func (p *Peer) transfer(ctx context.Context, h helper, a *answer, from, to []int32) error {
	deadline, _ := ctx.Deadline() // read has set one
	left := time.Until(deadline)
	if left < leastTime/2 {
		return errTime
	}
	err := h.Transfer(context.WithoutCancel(ctx), transfer.Transfer{Peer: a.Agent, Local: to, Remote: from, Timeout: left})
	var failure *transfer.Failure
	if errors.As(err, &failure) {
		if errors.Is(err, transfer.ErrBackend) && p.hasEnded(a) {
			p.free(h, a.Agent, failure)
		}
		p.d.settle(h, failure)
	}
	if errors.Is(err, transfer.ErrNoPeer) {
		p.joining.Lock()
		defer p.joining.Unlock()
		p.epoch = 0
	}
	return err
}

// hasEnded reports whether the process of the agent that has given an answer has ended, as the process that runs it states. Then a transfer
// that NIXL has ended writes no more, and this node's child need not be fenced. Without this, the fence of one node would make those
// fence that read from it.
func (p *Peer) hasEnded(of *answer) bool {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	message, err := json.Marshal(&request{Op: opAgent})
	if err != nil {
		return false
	}
	for range asks {
		reply, err := p.client.Call(ctx, message)
		if err != nil {
			return false
		}
		var a answer
		if err := json.Unmarshal(reply, &a); err != nil || a.Node != of.Node {
			return false
		}
		if a.Agent != of.Agent {
			return true
		}
		_ = backoff.Sleep(ctx, askPause) // the call ends with ctx
	}
	return false
}

// compare compares the blocks that have come with the tags of the answer. Its error reports a block with other bytes.
func compare(a *answer, dst [][]byte, results []stream.Result) (err error) {
	mac := block.NewMAC([block.MACKeyBytes]byte(a.Key))
	for i, slot := range a.Slots {
		results[i] = stream.Result{Err: stream.ErrMissing}
		if slot == missing {
			continue
		}
		results[i] = stream.Result{}
		if mac.Tag(uint32(i), dst[i]) != block.Tag(a.Tags[i*block.TagBytes:]) {
			results[i].Err = fmt.Errorf("%w: block %d of the answer has another tag", stream.ErrDamaged, i)
			err = results[i].Err
		}
	}
	return err
}
