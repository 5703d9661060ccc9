package weights

import (
	"context"
	"os"
	"sync"
)

// Node has the files of all models of one node there, and serves them. Create it with [NewNode].
type Node struct {
	cfg ReceiverConfig

	mu      sync.Mutex
	folders map[string]*sync.Mutex // guarded by mu; by folder: one goroutine at a time fetches its files

	// The goroutines that read folders to serve them end with open.
	open    context.Context
	close   context.CancelFunc
	reading sync.WaitGroup
}

// NewNode returns a node. Of the configuration, Model, Dir and Progress have no effect.
func NewNode(cfg ReceiverConfig) *Node {
	n := &Node{cfg: cfg, folders: map[string]*sync.Mutex{}}
	n.open, n.close = context.WithCancel(context.Background())
	return n
}

// Ensure returns when the files of a model are in a folder. Files that are there are taken as they are, and are served to other nodes when
// they were read once, which goes on in the background. Others are fetched. progress is called after each chunk.
func (n *Node) Ensure(ctx context.Context, model, dir string, progress func(done, total int64)) error {
	n.mu.Lock()
	one, isKnown := n.folders[dir]
	if !isKnown {
		one = &sync.Mutex{}
		n.folders[dir] = one
	}
	n.mu.Unlock()

	one.Lock() // several engines of a node have the same files
	defer one.Unlock()

	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		if !isKnown {
			n.reading.Go(func() { n.serve(model, dir) })
		}
		return nil
	}
	cfg := n.cfg
	cfg.Model, cfg.Dir = model, dir
	cfg.Progress = progress
	f, err := Receive(ctx, cfg)
	if err == nil {
		cfg.Log.Info("all files of the model are there", "model", model, "folder", dir, "bytes", f.manifest.bytes)
	}
	return err
}

// serve serves the files of a folder that this node had before.
func (n *Node) serve(model, dir string) {
	f, err := Open(n.open, dir, nil)
	if err != nil {
		n.cfg.Log.Warn("the files of a model are not served to other nodes", "model", model, "folder", dir, "err", err)
		return
	}
	n.cfg.Share.Add(model, f)
	n.cfg.Log.Info("the files of a model are served to other nodes", "model", model, "folder", dir, "id", f.manifest.id)
}

// Close ends the goroutines of Ensure. Fetches end with their own contexts.
func (n *Node) Close() {
	n.close()
	n.reading.Wait()
}
