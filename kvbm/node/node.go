// Package node runs the store of KV blocks of one model on a node: its memory, its slower tiers, and the socket that engines connect to.
//
// The first engine decides the layout of the blocks. Then memory is reserved and the tiers are opened; until that succeeds engines get
// the error, and try again. A disk that cannot be opened is tried again in the background, and the other tiers are used meanwhile.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/direct"
	"github.com/stator-project/stator/kvbm/disk"
	"github.com/stator-project/stator/kvbm/host"
	"github.com/stator-project/stator/kvbm/object"
	"github.com/stator-project/stator/kvbm/peers"
	"github.com/stator-project/stator/kvbm/pool"
	"github.com/stator-project/stator/kvbm/session"
	"github.com/stator-project/stator/kvbm/stream"
)

// Config describes the store of one model.
type Config struct {
	// Model is its name, for metrics and logs.
	Model string
	// Socket is the path of the Unix socket.
	Socket string
	// HostBytes is the size of host memory.
	HostBytes int64
	// DiskDir is the folder of the disk tier; empty means none. DiskBytes is its size.
	DiskDir   string
	DiskBytes int64
	DiskWrite kvbm.Policy
	// Object is the bucket of the object tier; an empty Bucket means none. Prefix begins the names of its objects, and Node is
	// the name under which this node deletes its objects.
	Object       object.S3Config
	ObjectPrefix string
	ObjectBytes  int64
	ObjectWrite  kvbm.Policy
	Node         string
	// PeerToken is the secret of all nodes whose host memory is a tier. Without it there is no such tier and no server. It authenticates
	// objects too.
	PeerToken string
	// Peers are the addresses of other nodes, beside the nodes of [Node.Found]. PeerListen is the address on which this node serves its
	// own blocks; empty means that it does not.
	Peers      []string
	PeerListen string
	// Host is the IP at which others reach this node if PeerListen is on all addresses, and PeerAddress the host:port that they use
	// instead of PeerListen. Served is called with the address that others are given when they are served, and with "" when they are no
	// more. It must not call the node. Nil is not called.
	Host        string
	PeerAddress string
	Served      func(address string)
	// NIXL has blocks come from peers by NIXL if both sides can; nil is the stream alone.
	NIXL *NIXL

	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// NIXL has the paths of the programs for copies by NIXL. Empty paths are searched for, see package transfer.
type NIXL struct {
	// Program is the path of stator-transfer, and Library the path of NIXL's C library or of its folder.
	Program, Library string
}

// closing bounds the time for writing packs when the node stops.
const closing = 10 * time.Second

// Node runs the store of one model. Create it with [New], and run it once.
type Node struct {
	cfg      Config
	server   *session.Server
	identity string // at other nodes

	mu      sync.Mutex
	ctx     context.Context // guarded by mu; of Run
	tasks   sync.WaitGroup  // of what open starts, and of control
	store   *kvbm.Store     // guarded by mu; nil before the first engine
	arena   *host.Arena     // guarded by mu
	peers   *peers.Peers    // guarded by mu; nil without that tier
	found   []peers.Found   // guarded by mu; other nodes
	streams *stream.Server  // guarded by mu; nil if other nodes are not served
	address string          // guarded by mu; that other nodes are given; empty if they are not served
	direct  *direct.Direct  // guarded by mu; nil without NIXL
	disk    *diskTier       // guarded by mu; nil without that tier
	object  *object.Tier    // guarded by mu; nil without that tier
	bucket  *object.S3      // guarded by mu
	failed  error           // guarded by mu; of the last open

	controls chan struct{} // as many as calls of control run
}

// New returns a node that does nothing yet.
func New(cfg Config) (*Node, error) {
	if cfg.HostBytes <= 0 {
		return nil, errors.New("host memory for KV blocks must have a size")
	}
	n := &Node{cfg: cfg, server: session.New(), identity: newIdentity(cfg.Node), controls: make(chan struct{}, 1)}
	if cfg.PeerToken == "" && (len(cfg.Peers) > 0 || cfg.PeerListen != "") {
		return nil, errors.New("nodes that fetch KV blocks from each other must have a token")
	}
	if n.cfg.Served == nil {
		n.cfg.Served = func(string) {}
	}
	cfg.Metrics.MustRegister(metric.Collector(n.collect, described...))
	return n, nil
}

// The pauses between attempts to open the socket again.
const (
	leastPause = 250 * time.Millisecond
	mostPause  = 10 * time.Second
)

// Run serves engines until ctx ends. If their socket cannot be opened, or ends, it is opened again after a pause, because engines serve
// without the store, and the agent goes on. Of several failures in a row with one reason, the first is logged. The error comes from
// closing the tiers.
func (n *Node) Run(ctx context.Context) error {
	// The tiers go on until no engine uses them.
	tiers, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.mu.Lock()
	n.ctx = tiers
	n.mu.Unlock()

	pauses := backoff.Backoff{Min: leastPause, Max: mostPause}
	logged := ""
	for ctx.Err() == nil {
		err := n.serveEngines(ctx)
		if err != nil && err.Error() != logged {
			logged = err.Error()
			n.cfg.Log.Error("engines cannot use the KV store, which tries again", "model", n.cfg.Model, "err", err)
		}
		_ = pauses.Wait(ctx) // the loop ends with ctx
	}

	stop()
	n.mu.Lock()
	n.store = nil // no control begins from here on
	n.mu.Unlock()
	n.tasks.Wait()
	return n.close()
}

// serveEngines serves engines until ctx ends, or the socket.
func (n *Node) serveEngines(ctx context.Context) error {
	_ = os.Remove(n.cfg.Socket) // of a process that was killed
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.cfg.Socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen for engines that use the KV store: %w", err)
	}
	if err := os.Chmod(n.cfg.Socket, 0o600); err != nil {
		return errors.Join(err, listener.Close())
	}
	return n.server.Serve(ctx, listener, session.Config{Open: n.open, Log: n.cfg.Log})
}

// close closes what open has opened.
func (n *Node) close() (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.disk != nil {
		err = n.disk.close()
	}
	if n.bucket != nil {
		n.bucket.Close()
	}
	if n.arena != nil {
		err = errors.Join(err, n.arena.Close())
	}
	return err
}

// open opens memory and tiers for a layout. After an error nothing is open.
func (n *Node) open(layout block.Layout) (opened session.Opened, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() { n.failed = err }()
	size := layout.Bytes()
	if int64(host.Stride(size)) > n.cfg.HostBytes {
		return opened, fmt.Errorf("kv.hostBytes is %d, and a block needs %d: raise it", n.cfg.HostBytes, host.Stride(size))
	}
	n.arena, err = host.New(host.Config{Slots: int(n.cfg.HostBytes / int64(host.Stride(size))), SlotBytes: size})
	if err != nil {
		return opened, err
	}
	defer func() {
		if err != nil {
			n.undo()
		}
	}()

	n.openDirect(&layout)
	var store *kvbm.Store
	var tiers []kvbm.Tier
	if n.cfg.PeerToken != "" {
		if err := n.openPeers(&layout); err != nil {
			return opened, fmt.Errorf("open the tier of other nodes' KV blocks: %w", err)
		}
		tiers = append(tiers, kvbm.Tier{Name: peerTier, Backend: n.peers, Write: kvbm.WriteNever})
	}
	if n.cfg.DiskDir != "" {
		n.disk = &diskTier{cfg: disk.Config{
			Dir: n.cfg.DiskDir, Bytes: n.cfg.DiskBytes, BlockBytes: size, Space: layout.Space(),
			Evicted: func(e pool.Evicted, _ []byte) { store.Lost(fleet.Disk, e.Key) },
		}}
		tiers = append(tiers, kvbm.Tier{Name: fleet.Disk.String(), Tier: fleet.Disk, Backend: n.disk, Write: n.cfg.DiskWrite})
	}
	if n.cfg.Object.Bucket != "" {
		if err := n.openObject(&layout); err != nil {
			return opened, fmt.Errorf("open the object tier of KV blocks: %w", err)
		}
		tiers = append(tiers, kvbm.Tier{
			Name: fleet.External.String(), Tier: fleet.External, Backend: kvbm.Object(n.object), Write: n.cfg.ObjectWrite,
		})
	}

	store, err = kvbm.New(kvbm.Config{Layout: layout, Memory: n.arena, Tiers: tiers, Changed: n.server.Changed})
	if err != nil {
		return opened, err
	}
	if n.cfg.PeerListen != "" {
		if err := n.servePeers(store); err != nil {
			return opened, err
		}
	}
	n.store = store
	if d := n.disk; d != nil && !d.open() {
		n.tasks.Go(func() { d.keepOpening(n.ctx) })
	}
	n.tasks.Go(func() { store.Run(n.ctx) })
	n.tasks.Go(func() { n.watch(n.ctx) })
	if d := n.direct; d != nil {
		n.tasks.Go(func() { d.Run(n.ctx) })
	}
	if p := n.peers; p != nil {
		n.tasks.Go(func() { p.Run(n.ctx) })
	}
	if t := n.object; t != nil {
		n.tasks.Go(func() { t.Run(n.ctx, closing) })
	}
	n.cfg.Log.Info("KV store opened", "model", n.cfg.Model, "block_bytes", size, "host_blocks", n.arena.Slots(),
		"huge_pages", n.arena.HugePages())
	return session.Opened{Store: store, Arena: n.arena}, nil
}

// openObject opens the object tier.
//
// Requires: mu.
func (n *Node) openObject(layout *block.Layout) (err error) {
	n.bucket, err = object.OpenS3(n.cfg.Object)
	if err != nil {
		return err
	}
	n.object, err = object.Open(object.Config{
		Bucket: n.bucket, Prefix: n.cfg.ObjectPrefix, Space: layout.Space(), BlockBytes: layout.Bytes(), Secret: n.cfg.PeerToken,
		Node: n.cfg.Node, MaxBytes: n.cfg.ObjectBytes,
	})
	if err == nil && n.cfg.PeerToken == "" {
		n.cfg.Log.Warn("KV blocks in the bucket are not authenticated: set peerTokenFile to the same secret on all nodes that share them",
			"model", n.cfg.Model, "bucket", n.cfg.Object.Bucket)
	}
	return err
}

// undo closes all that a failed open has opened.
//
// Requires: mu.
func (n *Node) undo() {
	n.disk = nil // which is opened last, when nothing fails any more
	if n.bucket != nil {
		n.bucket.Close()
		n.bucket = nil
		n.object = nil
	}
	n.peers = nil
	n.direct = nil
	_ = n.arena.Close() // the error of opening is returned
	n.arena = nil
}
