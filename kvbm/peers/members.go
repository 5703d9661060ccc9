package peers

import (
	"cmp"
	"context"
	"slices"
)

// Found is another node that was found while Run runs.
type Found struct {
	// Node is its name, and Address the host:port at which it serves its blocks.
	Node, Address string
}

// Set replaces the peers that were found. The addresses of [Config.Addresses] stay, and an address in both is one peer. The connection of
// a peer that is in neither any more ends, and with it the fetches from it, whose blocks then come from another peer if it has them.
//
// Above [Most], the addresses of Config come first, and then the found peers in the order of their nodes. The rest is not used.
func (p *Peers) Set(found []Found) {
	wanted := p.wanted(found)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.unused = max(len(wanted)-Most, 0)
	if p.unused > 0 && !p.warned {
		p.warned = true // the number is in Stats
		p.cfg.Log.Warn("there are more nodes with KV blocks than one uses; the last ones by name are not used", "most", Most,
			"unused", p.unused)
	}

	old := map[string]*peer{}
	for _, x := range p.all {
		old[x.address] = x
	}
	all := make([]*peer, 0, min(len(wanted), Most)) // a new list, because calls read the old one
	for _, f := range wanted[:min(len(wanted), Most)] {
		x := old[f.Address]
		if x == nil {
			x = p.addPeer(f.Address)
		}
		delete(old, f.Address)
		x.rename(f.Node)
		all = append(all, x)
	}
	for _, x := range old {
		x.stop()
		if p.ctx == nil && x.direct != nil {
			x.direct.Close() // no follow does it
		}
	}
	p.all = all
}

// wanted returns the addresses of Config and the addresses that were found, each once.
func (p *Peers) wanted(found []Found) (all []Found) {
	found = slices.Clone(found)
	slices.SortFunc(found, func(a, b Found) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Address, b.Address)) })
	at := map[string]int{}
	for _, address := range p.cfg.Addresses {
		if _, is := at[address]; !is {
			at[address] = len(all)
			all = append(all, Found{Address: address})
		}
	}
	for _, f := range found {
		i, is := at[f.Address]
		switch {
		case !is:
			at[f.Address] = len(all)
			all = append(all, f)
		case all[i].Node == "":
			all[i].Node = f.Node
		}
	}
	return all
}

// addPeer returns a peer, and follows it if Run runs.
//
// Requires: mu.
func (p *Peers) addPeer(address string) *peer {
	client, err := p.newClient(address)
	if err != nil {
		panic("peers: New has accepted what NewClient refuses: " + err.Error())
	}
	x := newPeer(address, client, &p.counts)
	if p.cfg.Direct != nil {
		x.direct = p.cfg.Direct(address, client)
	}
	if p.ctx != nil {
		p.follow(x)
	}
	return x
}

// follow asks a peer for its summary until it is stopped, or Run ends.
//
// Requires: mu.
func (p *Peers) follow(x *peer) {
	ctx, stop := context.WithCancel(p.ctx)
	x.stop = stop
	p.tasks.Go(func() {
		defer stop()
		x.follow(ctx, &p.cfg)
	})
}

// Run asks the peers for their summaries until ctx ends. Then it closes all connections, and no block can be fetched. It is called once.
func (p *Peers) Run(ctx context.Context) {
	p.mu.Lock()
	p.ctx = ctx
	for _, x := range p.all {
		p.follow(x)
	}
	p.mu.Unlock()

	<-ctx.Done()
	p.mu.Lock()
	p.ended = true // so that no task is added while Wait waits
	p.mu.Unlock()
	p.tasks.Wait()
}

// current returns the peers of the moment.
func (p *Peers) current() []*peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// State is the state of one peer, and decides its use.
type State string

// The states of peers.
const (
	// Usable is the state of a peer whose blocks are known.
	Usable State = "usable"
	// Waiting is the state before the first answer.
	Waiting State = "waiting"
	// Failing is the state after an error, until the peer answers again and the pause after the error is over.
	Failing State = "failing"
	// Self is the state of an address at which this node serves its own blocks. It is not used.
	Self State = "self"
)

// Status is the state of one peer. /debug/kv shows it.
type Status struct {
	// Address is host:port, and Node the name of the node; it is empty if that is not known.
	Address string `json:"address"`
	Node    string `json:"node"`
	State   State  `json:"state"`
	// Reason is why a peer is Failing.
	Reason string `json:"reason"`
	// Blocks counts the peer's blocks.
	Blocks int `json:"blocks"`
}

// Status returns the states of all peers: first the peers of [Config.Addresses], and then the others by the names of their nodes.
func (p *Peers) Status() []Status {
	all := p.current()
	out := make([]Status, len(all))
	for i, x := range all {
		out[i] = x.status()
	}
	return out
}
