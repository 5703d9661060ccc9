package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Transfer describes how the KV cache of a computed prompt reaches the worker that decodes it. Zero fields have their
// defaults. The sources of the defaults are in docs/replay.md.
type Transfer struct {
	// Base is the time from the end of a prefill until data flow; default 3 ms.
	Base time.Duration
	// TokenBytes is the size of a token's KV cache; default 131,072, which is Llama-3.1-8B with 16 bits.
	TokenBytes int
	// NodeBandwidth is the bytes per second that a GPU can send, and that it can receive, in transfers within its
	// node; default 80e9 (NVLink). NetworkBandwidth is the same between nodes; default 42.6e9 (InfiniBand with 400
	// Gb/s). All transfers of a worker share the bandwidth of its GPUs.
	NodeBandwidth, NetworkBandwidth float64
	// Nodes is the number of nodes; default 1. The engines of each role are spread evenly over them, in order.
	Nodes int
	// Zones means that routers know the nodes of engines, as zones.
	Zones bool
}

func (t Transfer) withDefaults() Transfer {
	t.Base = cmp.Or(t.Base, 3*time.Millisecond)
	t.TokenBytes = cmp.Or(t.TokenBytes, 128<<10)
	t.NodeBandwidth = cmp.Or(t.NodeBandwidth, 80e9)
	t.NetworkBandwidth = cmp.Or(t.NetworkBandwidth, 42.6e9)
	t.Nodes = cmp.Or(t.Nodes, 1)
	return t
}

// validate reports everything that is wrong.
func (t Transfer) validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(t.Base < 0 || t.Base > time.Hour, "transfers begin after %v: it must be 0 to 1h", t.Base)
	refuse(t.TokenBytes < 1 || t.TokenBytes > 1<<30, "%d bytes of KV cache for a token: it must be 1 to %d", t.TokenBytes, 1<<30)
	for _, b := range []float64{t.NodeBandwidth, t.NetworkBandwidth} {
		refuse(!(b >= 1e3 && b <= 1e18), "a bandwidth of %v bytes/s: it must be 1e3 to 1e18", b)
	}
	refuse(t.Nodes < 1 || t.Nodes > 4096, "%d nodes: there must be 1 to 4096", t.Nodes)
	return errors.Join(errs...)
}

// transfer is the KV cache of one job on its way.
type transfer struct {
	job      *job
	from, to *worker
	began    time.Duration
	left     float64 // bytes
	rate     float64 // bytes per second; valid while it is one of links.active
}

// inNode reports whether both workers are on one node.
func (t *transfer) inNode() bool { return t.from.node == t.to.node }

// links are the transfers whose data flow now, in order of their beginning.
//
// Invariant: left and rate of all active transfers are those at the time at. The agenda has an event transferEnds with
// the number life, for the transfer that ends first, if there is one.
type links struct {
	active []*transfer
	at     time.Duration
	life   uint64
}

// end is one end of a link: a worker's sending or receiving, within its node or over the network.
type end struct {
	worker   *worker
	receives bool
	inNode   bool
}

// flow begins to transfer the data of a job.
func (r *run) flow(j *job) {
	if j.handoff.transfer == nil {
		return // the job has failed
	}
	r.advanceLinks()
	r.links.active = append(r.links.active, j.handoff.transfer)
	r.shareLinks()
}

// endTransfers ends the transfers whose data have all arrived.
func (r *run) endTransfers(life uint64) error {
	if life != r.links.life {
		return nil
	}
	// Several transfers may end at once. Their rates count until now, and the rates of the others change.
	r.advanceLinks()
	var ended []*transfer
	r.links.active = slices.DeleteFunc(r.links.active, func(t *transfer) bool {
		if t.left > 0 {
			return false
		}
		ended = append(ended, t)
		return true
	})
	r.shareLinks()

	for _, t := range ended {
		r.transferred(t.job)
	}
	if r.cfg.Concurrency > 0 {
		return r.admit() // a failed request makes room for another
	}
	return nil
}

// cutTransfer ends the transfer of a job that fails.
func (r *run) cutTransfer(j *job) {
	r.advanceLinks()
	r.links.active = slices.DeleteFunc(r.links.active, func(t *transfer) bool { return t == j.handoff.transfer })
	r.shareLinks()
	j.handoff.transfer = nil
}

// advanceLinks moves the data of the time since the last change.
func (r *run) advanceLinks() {
	l := &r.links
	for _, t := range l.active {
		t.left -= t.rate * (r.now - l.at).Seconds()
		if t.left < 1 { // a rest of less than a byte is rounding
			t.left = 0
		}
	}
	l.at = r.now
}

// shareLinks gives every transfer its rate: an equal share of the bandwidth at both ends, of which the smaller one counts.
func (r *run) shareLinks() {
	l := &r.links
	l.life++
	if len(l.active) == 0 {
		return
	}
	sharing := map[end]int{}
	for _, t := range l.active {
		sharing[end{t.from, false, t.inNode()}]++
		sharing[end{t.to, true, t.inNode()}]++
	}

	// The next change is the end of the transfer that is ready first, unless another one begins before.
	first := math.Inf(1)
	for _, t := range l.active {
		bandwidth := r.cfg.Transfer.NetworkBandwidth
		if t.inNode() {
			bandwidth = r.cfg.Transfer.NodeBandwidth
		}
		sends := bandwidth * float64(t.from.gpus) / float64(sharing[end{t.from, false, t.inNode()}])
		receives := bandwidth * float64(t.to.gpus) / float64(sharing[end{t.to, true, t.inNode()}])
		t.rate = min(sends, receives)
		first = min(first, t.left/t.rate)
	}

	// Rounded up, so that the data have arrived when the event comes.
	wait := time.Duration(math.Ceil(first * float64(time.Second)))
	r.agenda.add(event{at: r.now + wait, kind: transferEnds, life: l.life})
}
