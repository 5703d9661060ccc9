package node

import "github.com/stator-project/stator/internal/fleet"

// Model returns the model of the store.
func (n *Node) Model() string { return n.cfg.Model }

// Loads returns how long blocks take from each tier to an engine; zero where that was not measured yet.
func (n *Node) Loads() (out [fleet.Tiers]fleet.TierLoad) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.store == nil {
		return out
	}
	return n.store.Loads()
}
