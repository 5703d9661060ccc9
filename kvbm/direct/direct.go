package direct

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/host"
	"github.com/stator-project/stator/nixl/transfer"
	"github.com/stator-project/stator/nixl/wire"
)

// Config configures copies by NIXL. Layout and Arena have no default.
type Config struct {
	// Program and Library are looked for as by transfer.FindProgram and transfer.FindLibrary, each time that the child is started.
	Program, Library string
	// Layout is the layout of the blocks, and Arena the memory of the store. It must not be closed before Run has returned.
	Layout block.Layout
	Arena  *host.Arena
	// Timeout bounds the reads of one fetch by NIXL, which get half of its time at most (5 s). LeaseTime is the time for which a server
	// holds blocks for a client (15 s). It must be longer than Timeout on all nodes.
	Timeout, LeaseTime time.Duration
	Log                *slog.Logger

	// start starts the child. Tests replace it.
	start func(ctx context.Context, cfg transfer.Config) (helper, error)
}

// helper has the methods that this package needs of a transfer.Helper.
type helper interface {
	AddPeer(ctx context.Context, endpoint []byte) (name string, err error)
	RemovePeer(ctx context.Context, name string) error
	PeerDied(ctx context.Context, name string) error
	Transfer(ctx context.Context, t transfer.Transfer) error
	Fence()
	Endpoint() []byte
	PID() int
	Restarts() int
	Close()
}

// The bounds of the pauses after failures.
const (
	leastPause = time.Second
	mostPause  = 30 * time.Second
)

// startTime bounds the start of the child. Adapters with RDMA pin all memory when it is registered, which takes long for a large store.
const startTime = 2 * time.Minute

// errNotRunning is the error while the child has not started. Its reason follows.
var (
	errNotRunning = errors.New("stator-transfer does not run on this node")
	errStarting   = errors.New("it is starting")
)

// Direct copies blocks by NIXL. Create it with [New].
type Direct struct {
	cfg   Config
	id    string        // of this process, for peers
	epoch atomic.Uint64 // counts children
	fence sync.Mutex    // held by the one that fences the child

	mu     sync.Mutex
	helper helper             // guarded by mu; nil while none runs
	reason error              // guarded by mu; why; nil with a helper
	peers  map[*Peer]struct{} // guarded by mu

	leases leaseCounts
	counts counts
}

// counts are the counts of all peers.
type counts struct{ nixlOK, nixlFailed, tcpOK, tcpFailed, fences atomic.Uint64 }

// New returns a Direct that does nothing before Run.
func New(cfg Config) *Direct {
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.LeaseTime = cmp.Or(cfg.LeaseTime, 15*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.start == nil {
		cfg.start = func(ctx context.Context, c transfer.Config) (helper, error) { return transfer.Start(ctx, c) }
	}
	d := &Direct{cfg: cfg, id: rand.Text(), reason: errStarting, peers: map[*Peer]struct{}{}}
	d.leases.most = max(cfg.Arena.Slots()/4, 1)
	return d
}

// Run runs the child until ctx ends, and tries again when it does not start. After it returns, nothing writes to the arena.
func (d *Direct) Run(ctx context.Context) {
	pauses := backoff.Backoff{Min: leastPause, Max: mostPause}
	logged := ""
	for ctx.Err() == nil {
		h, err := d.start(ctx)
		if err == nil {
			d.setHelper(h, nil)
			d.cfg.Log.Info("stator-transfer runs, to copy KV blocks from other nodes by NIXL", "pid", h.PID())
			<-ctx.Done()
			h.Close() // before setHelper, because peers take an agent that does not run as one that has ended
			d.setHelper(nil, errors.New("this node stops"))
			return
		}
		d.setHelper(nil, err)
		if ctx.Err() == nil && logged != err.Error() {
			logged = err.Error()
			d.cfg.Log.Warn("KV blocks come by TCP, because stator-transfer does not start", "err", err)
		}
		_ = pauses.Wait(ctx) // the loop ends with ctx
	}
}

// start starts the child.
func (d *Direct) start(ctx context.Context) (helper, error) {
	program, err := transfer.FindProgram(d.cfg.Program)
	if err != nil {
		return nil, err
	}
	library, err := transfer.FindLibrary(d.cfg.Library)
	if err != nil {
		return nil, err
	}
	return d.cfg.start(ctx, transfer.Config{
		Program: program, Library: library, Name: "stator-kv", Memory: d.cfg.Arena.File(), Layout: d.cfg.Layout,
		Slots: d.cfg.Arena.Slots(), Stride: host.Stride(d.cfg.Arena.SlotBytes()),
		Backends: []wire.Backend{transfer.Network()}, StartTime: startTime, Log: d.cfg.Log,
		Started: func([]byte) { d.epoch.Add(1) },
	})
}

// setHelper enters the child, or why none runs.
func (d *Direct) setHelper(h helper, reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.helper = h
	d.reason = reason
}

// running returns the child, or why none runs. epoch is another one for each child that the helper has started.
func (d *Direct) running() (h helper, epoch uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.helper == nil {
		return nil, 0, fmt.Errorf("%w: %w", errNotRunning, d.reason)
	}
	return d.helper, d.epoch.Load(), nil
}

// settle returns when nothing writes to the slots of a transfer that has failed. It kills the child unless that is the case already.
func (d *Direct) settle(h helper, f *transfer.Failure) {
	d.fence.Lock()
	defer d.fence.Unlock()
	select {
	case <-f.Safe: // another fetch has fenced the child
		return
	default:
	}
	d.counts.fences.Add(1)
	h.Fence()
	<-f.Safe
}

// Stats is the state of copies by NIXL. /debug/kv shows it.
type Stats struct {
	// PID is the process ID of the child. It is 0 while none runs, and Reason has the cause.
	PID    int    `json:"pid"`
	Reason string `json:"reason"`
	// Restarts counts children after the first, and Fences children that were killed to keep late bytes out of the store.
	Restarts int    `json:"restarts"`
	Fences   uint64 `json:"fences"`
	// Held counts the blocks that are held for clients that read them.
	Held      int `json:"leased_blocks"`
	Transfers `json:"transfers"`
	// Peers are sorted by their addresses.
	Peers []PeerStats `json:"peers"`
}

// Transfers counts fetches by the way that blocks came and by success. A fetch by both counts twice.
type Transfers struct {
	NIXLOK     uint64 `json:"nixl_ok"`
	NIXLFailed uint64 `json:"nixl_failed"`
	TCPOK      uint64 `json:"tcp_ok"`
	TCPFailed  uint64 `json:"tcp_failed"`
}

// PeerStats is the state of one peer.
type PeerStats struct {
	Address string `json:"peer"`
	// Transport is the way of the last fetch: nixl or tcp; empty before the first. Reason is why it was not nixl.
	Transport string `json:"transport"`
	Reason    string `json:"reason"`
}

// Stats returns the current values.
func (d *Direct) Stats() Stats {
	d.mu.Lock()
	h, reason := d.helper, d.reason
	peers := make([]*Peer, 0, len(d.peers))
	for p := range d.peers {
		peers = append(peers, p)
	}
	d.mu.Unlock()

	c := &d.counts
	s := Stats{
		Fences: c.fences.Load(), Held: d.leases.count(), Peers: []PeerStats{},
		Transfers: Transfers{c.nixlOK.Load(), c.nixlFailed.Load(), c.tcpOK.Load(), c.tcpFailed.Load()},
	}
	if h != nil {
		s.PID = h.PID()
		s.Restarts = h.Restarts()
		if s.PID == 0 {
			reason = transfer.ErrStarting
		}
	}
	if reason != nil {
		s.Reason = reason.Error()
	}
	for _, p := range peers {
		s.Peers = append(s.Peers, p.stats())
	}
	slices.SortFunc(s.Peers, func(a, b PeerStats) int { return strings.Compare(a.Address, b.Address) })
	return s
}
