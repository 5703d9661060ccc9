package peers

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
)

const (
	// leastPause and mostPause bound the pauses after failures.
	leastPause = 250 * time.Millisecond
	mostPause  = 30 * time.Second
	// mostAbsent bounds the blocks that are remembered as absent.
	mostAbsent = 4096
)

// peer is one other node.
type peer struct {
	address string
	client  *stream.Client
	direct  Direct // nil without another way than the client
	counts  *counts
	stop    func() // ends follow; guarded by the mutex of Peers

	mu      sync.Mutex
	node    string                 // guarded by mu; its name, if it is known
	askErr  error                  // guarded by mu; of the last summary; nil before the first
	getErr  error                  // guarded by mu; of the last fetch that failed
	blocks  filter                 // guarded by mu; nil while the peer's blocks are not known
	version uint64                 // guarded by mu; of blocks
	absent  map[block.Key]struct{} // guarded by mu; blocks of the filter that the peer did not send
	self    bool                   // guarded by mu; the peer is this node
	pauses  backoff.Backoff        // guarded by mu; after fetches that failed
	until   time.Time              // guarded by mu; the end of a pause
}

func newPeer(address string, client *stream.Client, counts *counts) *peer {
	return &peer{address: address, client: client, counts: counts, stop: func() {}, absent: map[block.Key]struct{}{},
		pauses: backoff.Backoff{Min: leastPause, Max: mostPause}}
}

// match returns how many of the first blocks the peer has.
func (x *peer) match(keys []block.Key) (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.blocks == nil || time.Now().Before(x.until) {
		return 0
	}
	for ; n < len(keys) && x.blocks.has(keys[n]); n++ {
		if _, is := x.absent[keys[n]]; is {
			break
		}
	}
	return n
}

// state returns how many blocks the peer has, whether that is known, and whether it is this node itself.
func (x *peer) state() (blocks int, known, self bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.blocks == nil {
		return 0, false, x.self
	}
	return x.blocks.blocks(), true, x.self
}

// logger returns a logger that names the peer.
func (x *peer) logger(log *slog.Logger) *slog.Logger {
	x.mu.Lock()
	defer x.mu.Unlock()
	log = log.With("peer", x.address)
	if x.node != "" {
		log = log.With("node", x.node)
	}
	return log
}

// rename sets the name of the node.
func (x *peer) rename(node string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.node = node
}

// status returns the peer's state.
func (x *peer) status() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Status{Address: x.address, Node: x.node, State: Waiting}
	if x.blocks != nil {
		s.Blocks = x.blocks.blocks()
	}
	switch {
	case x.self:
		s.State = Self
	case time.Now().Before(x.until):
		s.State = Failing
		s.Reason = x.getErr.Error()
	case x.blocks != nil:
		s.State = Usable
	case x.askErr != nil:
		s.State = Failing
		s.Reason = x.askErr.Error()
	}
	return s
}

// follow asks for summaries until ctx ends. Then it closes the connection.
func (x *peer) follow(ctx context.Context, cfg *Config) {
	defer x.client.Close()
	if x.direct != nil {
		defer x.direct.Close()
	}

	defer x.forget()
	pauses := backoff.Backoff{Min: leastPause, Max: mostPause}
	last := ""
	for ctx.Err() == nil {
		err := x.askSummary(ctx, cfg.AskTimeout)
		x.asked(err)
		if ctx.Err() != nil || errors.Is(err, stream.ErrSelf) {
			return
		}

		wait := cfg.Every
		if err == nil {
			pauses.Reset()
		} else {
			x.forget()
			wait = max(wait, pauses.Next())
		}
		last = logChange(x.logger(cfg.Log), last, err)
		_ = backoff.Sleep(ctx, wait) // the loop ends with ctx
	}
}

// asked notes how asking for a summary has ended.
func (x *peer) asked(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.askErr = err
	x.self = errors.Is(err, stream.ErrSelf)
}

// refusals are the errors whose reason an operator has to remove.
var refusals = []error{stream.ErrToken, stream.ErrVersion, stream.ErrFull, stream.ErrProtocol, block.ErrLayout, errFilter}

// logChange logs an error that is of another kind than the last one, and the end of errors. It returns the kind. Errors of the network are
// one kind, because their texts have ports.
func logChange(log *slog.Logger, last string, err error) (kind string) {
	if err != nil {
		kind = "network"
	}
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			kind = refusal.Error()
		}
	}
	switch {
	case kind == last:
	case kind == "":
		log.Info("blocks are fetched from the peer again")
	default:
		log.Warn("no blocks are fetched from a peer", "err", err)
	}
	return kind
}

// askSummary asks for a summary, and takes it over.
func (x *peer) askSummary(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	x.mu.Lock()
	has := x.version
	x.mu.Unlock()

	version, content, err := x.client.Summary(ctx, has)
	if err != nil {
		return err
	}
	if version == has && content == nil && has != 0 {
		return nil // forget may have made the version 0 meanwhile: then the next call gets the summary
	}
	blocks, err := parseFilter(content)
	if err != nil {
		x.client.Drop(err)
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.blocks = blocks
	x.version = version
	clear(x.absent)
	return nil
}

// forget drops the filter of the peer's blocks.
func (x *peer) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.blocks = nil
	x.version = 0
	clear(x.absent)
}

// fetch fetches blocks, and returns an error or nil for each.
func (x *peer) fetch(ctx context.Context, keys []block.Key, dst [][]byte) []error {
	errs := make([]error, len(keys))
	var failure error
	get := x.client.Fetch
	if x.direct != nil {
		get = x.direct.Fetch
	}
	for i, r := range get(ctx, keys, dst) {
		errs[i] = r.Err
		switch {
		case r.Err == nil:
		case errors.Is(r.Err, stream.ErrMissing):
			x.counts.missing.Add(1)
			x.lacks(keys[i])
		case errors.Is(r.Err, stream.ErrDamaged):
			x.counts.damaged.Add(1)
			x.lacks(keys[i])
		default:
			failure = r.Err
		}
	}
	x.ended(ctx, failure)
	return errs
}

// lacks notes that the peer did not send a block.
func (x *peer) lacks(key block.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.absent) >= mostAbsent {
		clear(x.absent)
	}
	x.absent[key] = struct{}{}
}

// ended notes the end of a fetch. After a failure of the peer there is a pause. It is none of the peer's that the caller has left, that the
// time did not suffice for all, or that the peer was removed.
func (x *peer) ended(ctx context.Context, failure error) {
	if failure != nil && ctx.Err() != nil && !errors.Is(failure, stream.ErrStalled) || errors.Is(failure, stream.ErrClosed) {
		return
	}
	if failure != nil {
		x.counts.failed.Add(1)
		if !errors.Is(failure, stream.ErrBusy) {
			x.forget()
		}
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	if failure == nil {
		x.pauses.Reset()
		return
	}
	x.getErr = failure
	x.until = time.Now().Add(x.pauses.Next())
}
