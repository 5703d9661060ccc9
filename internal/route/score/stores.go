package score

import (
	"slices"

	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/request"
)

// storeReach describes how much of a prompt the nodes' stores of KV blocks have in host memory. All engines of a model on a node share its
// store, and each reports only the blocks that it has written or loaded.
type storeReach struct {
	onNode []int // blocks, by the number of the node
	// most is the node with the most blocks among the nodes that serve others, first its number of blocks, and second
	// the number of the next node.
	most          int32
	first, second int
}

// find finds the stores with the beginning of the prompt, whether their ranks are free or busy. It reports whether there are any. Engines
// with blocks of other sizes cannot load them, so it finds stores of engines with so many of the model's blocks in a block.
func (s *storeReach) find(f *eligible.Field, overlap *kvindex.Overlap, q *request.Prepared, each int) (found bool) {
	n := f.NumberNodes()
	s.onNode = slices.Grow(s.onNode[:0], n)[:n]
	clear(s.onNode)
	s.most = eligible.NoNode
	s.first, s.second = 0, 0

	for i, node := range f.Nodes {
		if node == eligible.NoNode {
			continue
		}
		blocks := overlap.InHost(f.Ranks[i].ID)
		if blocks == 0 || q.Model.BlocksIn(f.Ranks[i].Worker) != each {
			continue
		}
		store := f.Ranks[i].Load.Store()
		if store == nil {
			continue
		}

		found = true
		s.onNode[node] = max(s.onNode[node], blocks)
		if store.Served {
			s.serve(node, blocks)
		}
	}
	return found
}

// serve adds blocks of a node that serves others.
func (s *storeReach) serve(node int32, blocks int) {
	switch {
	case node == s.most:
		s.first = max(s.first, blocks)
	case blocks > s.first:
		s.second = s.first
		s.most, s.first = node, blocks
	default:
		s.second = max(s.second, blocks)
	}
}

// onPeersOf returns the number of blocks that a node can load from another one.
func (s *storeReach) onPeersOf(node int32) int {
	if node == s.most {
		return s.second
	}
	return s.first
}

// findLoads finds out how much of the prompt each candidate could load from the store of its node, beyond the blocks that its engine has
// reported, and from other nodes. If engines fetch from each other's caches, candidates have that instead.
func (j *Judged) findLoads(f *eligible.Field, overlap *kvindex.Overlap) {
	if j.asked.Remote || j.asked.ReadsNoCache || len(j.sources) > 0 || !overlap.AnyInHost() {
		return
	}
	j.findLoadsOf(f, overlap, 1)
	for i := range j.asked.Coarse {
		j.findLoadsOf(f, overlap, j.asked.Coarse[i].Each)
	}
}

// findLoadsOf is findLoads for the candidates with so many of the model's blocks in a block.
func (j *Judged) findLoadsOf(f *eligible.Field, overlap *kvindex.Overlap, each int) {
	if !j.stores.find(f, overlap, j.asked, each) {
		return
	}
	for i := range j.Candidates {
		c, node := &j.Candidates[i], f.Nodes[i]
		store := c.Rank.Load.Store()
		if node == eligible.NoNode || store == nil || c.Facts.Each != each {
			continue
		}
		held := c.Facts.HeldBlocks()
		c.Facts.Store = store
		c.Facts.OnNode = max(0, j.stores.onNode[node]-held)
		if store.Peers.Known() {
			c.Facts.OnPeers = max(0, j.stores.onPeersOf(node)-held-c.Facts.OnNode)
		}
	}
}
