package node

import "github.com/stator-project/stator/internal/fleet"

// Model returns the model of the store.
func (n *Node) Model() string { return n.cfg.Model }

// Report returns what routers need to know of the store. Before the first engine it is not used.
func (n *Node) Report() fleet.Store {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.store == nil {
		return fleet.Store{}
	}

	s := n.store.Report()
	s.Served = n.address != ""
	if n.peers == nil || n.peers.Stats().Reachable == 0 {
		s.Peers = fleet.TierLoad{}
	}
	return s
}
