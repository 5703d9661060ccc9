package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
)

// Config configures the fetching from peers. Addresses, Token, Node and Layout have no default.
type Config struct {
	// Addresses are the addresses of peers that are there without being found, host:port, at most [Most]. The node's own may be among
	// them.
	Addresses []string
	// Token is the secret that all nodes share. Node is this node's name, which no other has.
	Token, Node string
	Layout      block.Layout

	// Direct returns what fetches the blocks of a peer in place of its client. Nil is the client itself.
	Direct func(address string, client *stream.Client) Direct

	// Every is the interval at which a peer is asked for its summary (2 s), and AskTimeout bounds its answer (5 s).
	Every, AskTimeout time.Duration
	Log               *slog.Logger
}

// Direct fetches blocks of one peer by another way than the stream, which it uses if that way fails.
type Direct interface {
	// Fetch is as [stream.Client.Fetch].
	Fetch(ctx context.Context, keys []block.Key, dst [][]byte) []stream.Result
	// Close is called when the peer is not used any more.
	Close()
}

// Most is the highest number of peers.
const Most = 256

// Errors of blocks that were not loaded.
var (
	// ErrNowhere is the error of a block that no peer has by their last summaries.
	ErrNowhere = errors.New("no peer has the block")
	// errReadOnly is the error of Store.
	errReadOnly = errors.New("nothing is written to the memory of peers")
)

// Peers fetches blocks from other nodes. Create it with [New].
type Peers struct {
	cfg    Config
	counts counts
	tasks  sync.WaitGroup // of Run, one for each peer

	mu     sync.Mutex
	all    []*peer         // guarded by mu; replaced by Set, and never written to
	unused int             // guarded by mu; those above Most
	warned bool            // guarded by mu; that there are some above Most was logged
	ctx    context.Context // guarded by mu; of Run; nil before
	ended  bool            // guarded by mu; the context of Run has ended
}

// counts are the counts of all peers, including removed ones.
type counts struct{ missing, damaged, failed atomic.Uint64 }

// New returns peers of which nothing is known before Run.
func New(cfg Config) (*Peers, error) {
	if len(cfg.Addresses) > Most {
		return nil, fmt.Errorf("%d peers: there may be %d", len(cfg.Addresses), Most)
	}
	if cfg.Every <= 0 {
		cfg.Every = 2 * time.Second
	}
	if cfg.AskTimeout <= 0 {
		cfg.AskTimeout = 5 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}

	p := &Peers{cfg: cfg}
	if _, err := p.newClient(""); err != nil { // the configuration of all clients differs in the address alone
		return nil, err
	}
	p.Set(nil)
	return p, nil
}

// newClient returns a client that connects to an address.
func (p *Peers) newClient(address string) (*stream.Client, error) {
	return stream.NewClient(stream.ClientConfig{
		Token: p.cfg.Token, Node: p.cfg.Node, Layout: p.cfg.Layout,
		Dial: func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", address) },
	})
}

// best returns the peer that has most of the first blocks, and how many. It is nil if none has the first one.
func (p *Peers) best(keys []block.Key, except *peer) (best *peer, most int) {
	for _, x := range p.current() {
		if x == except {
			continue
		}
		if n := x.match(keys); n > most {
			best = x
			most = n
		}
	}
	return best, most
}

// Match returns how many of the first blocks one peer has.
func (p *Peers) Match(keys []block.Key) int {
	_, n := p.best(keys, nil)
	return n
}

// Has reports whether a peer has a block.
func (p *Peers) Has(key block.Key) bool { return p.Match([]block.Key{key}) == 1 }

// Load fetches blocks: dst[i] becomes the block keys[i]. The error of a block is [ErrNowhere], or one of [stream.Client.Fetch].
func (p *Peers) Load(ctx context.Context, keys []block.Key, dst [][]byte) []error {
	errs := make([]error, len(keys))
	for i := range errs {
		errs[i] = ErrNowhere
	}
	first, n := p.best(keys, nil)
	if first == nil {
		return errs
	}
	if other, _ := p.best(keys, first); other == nil {
		copy(errs, first.fetch(ctx, keys[:n], dst[:n]))
	} else {
		short, cancel := halfOf(ctx)
		copy(errs, first.fetch(short, keys[:n], dst[:n]))
		cancel()
	}

	// Blocks that have not come are wanted from one other peer.
	var left []int
	var leftKeys []block.Key
	var leftDst [][]byte
	for i, err := range errs {
		if err != nil {
			left = append(left, i)
			leftKeys = append(leftKeys, keys[i])
			leftDst = append(leftDst, dst[i])
		}
	}
	if len(left) == 0 || ctx.Err() != nil {
		return errs
	}
	second, n := p.best(leftKeys, first)
	if second == nil {
		return errs
	}
	for k, err := range second.fetch(ctx, leftKeys[:n], leftDst[:n]) {
		errs[left[k]] = err
	}
	return errs
}

// halfOf returns a context that ends when half of the time until the deadline has passed, if there is one.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// Store returns an error.
func (p *Peers) Store(context.Context, block.Key, []byte, uint8) error { return errReadOnly }

// Stats is the state of all peers, and the counts since New.
type Stats struct {
	// Peers counts the peers without this node itself, and Reachable the peers whose blocks are known. Unused counts the peers above
	// [Most].
	Peers, Reachable, Unused int
	// Blocks is the sum of the blocks that they have, of which several may have the same.
	Blocks int
	// Missing counts blocks that a peer did not have after all, Damaged blocks that came with other bytes, and Failed fetches that a peer
	// or the network has ended.
	Missing, Damaged, Failed uint64
}

// Stats returns the current values.
func (p *Peers) Stats() Stats {
	out := Stats{Missing: p.counts.missing.Load(), Damaged: p.counts.damaged.Load(), Failed: p.counts.failed.Load()}
	p.mu.Lock()
	out.Unused = p.unused
	p.mu.Unlock()
	for _, x := range p.current() {
		blocks, reachable, self := x.state()
		if !self {
			out.Peers++
		}
		if reachable {
			out.Reachable++
		}
		out.Blocks += blocks
	}
	return out
}
