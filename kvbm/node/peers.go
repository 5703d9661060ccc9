package node

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/direct"
	"github.com/stator-project/stator/kvbm/peers"
	"github.com/stator-project/stator/kvbm/stream"
)

// peerTier is the name of the tier of other nodes' memory.
const peerTier = "peer"

// newIdentity returns a name for connections between nodes that no other process has, even if two nodes have one name.
func newIdentity(node string) string { return node[:min(len(node), 100)] + "/" + rand.Text() }

// openPeers opens the tier of other nodes' memory.
//
// Requires: mu.
func (n *Node) openPeers(layout *block.Layout) (err error) {
	cfg := peers.Config{
		Addresses: n.cfg.Peers, Token: n.cfg.PeerToken, Node: n.identity, Layout: *layout, Log: n.cfg.Log.With("model", n.cfg.Model),
	}
	if d := n.direct; d != nil {
		cfg.Direct = func(address string, client *stream.Client) peers.Direct { return d.Peer(address, client) }
	}
	n.peers, err = peers.New(cfg)
	if err == nil {
		n.peers.Set(n.found)
	}
	return err
}

// Found replaces the other nodes from which blocks are fetched, beside the nodes of Config.Peers.
func (n *Node) Found(others []peers.Found) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.found = others
	if n.peers != nil {
		n.peers.Set(others)
	}
}

// addressFor returns the address at which other nodes reach a listener.
func (n *Node) addressFor(listener net.Addr) string {
	if n.cfg.PeerAddress != "" {
		return n.cfg.PeerAddress
	}
	at, err := netip.ParseAddrPort(listener.String())
	if err != nil {
		return listener.String()
	}
	if at.Addr().IsUnspecified() {
		return net.JoinHostPort(n.cfg.Host, strconv.Itoa(int(at.Port())))
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

// openDirect prepares copies by NIXL, if they are configured.
//
// Requires: mu.
func (n *Node) openDirect(layout *block.Layout) {
	if n.cfg.NIXL == nil {
		return
	}
	n.direct = direct.New(direct.Config{
		Program: n.cfg.NIXL.Program, Library: n.cfg.NIXL.Library, Layout: *layout, Arena: n.arena,
		Log: n.cfg.Log.With("model", n.cfg.Model),
	})
}

// servePeers serves a store to other nodes until the context of Run ends.
//
// Requires: mu.
func (n *Node) servePeers(store *kvbm.Store) error {
	source := peers.NewSource(store)
	cfg := stream.ServerConfig{
		Token: n.cfg.PeerToken, Node: n.identity, Layout: store.Layout(), Source: source, Summary: source.Summary, Connections: peers.Most,
		Log: n.cfg.Log.With("model", n.cfg.Model),
	}
	if n.direct != nil {
		cfg.Calls = n.direct.Serve(store)
	}
	server, err := stream.NewServer(cfg)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", n.cfg.PeerListen)
	if err != nil {
		return fmt.Errorf("listen for other nodes that fetch KV blocks: %w", err)
	}

	n.streams = server
	n.address = n.addressFor(listener.Addr())
	n.cfg.Served(n.address)
	n.tasks.Go(func() {
		err := server.Serve(n.ctx, listener)
		n.cfg.Served("")
		n.mu.Lock()
		n.address = ""
		n.mu.Unlock()
		if err != nil {
			n.cfg.Log.Error("KV blocks are not served to other nodes any more", "model", n.cfg.Model, "err", err)
		}
	})
	n.cfg.Log.Info("KV blocks are served to other nodes", "model", n.cfg.Model, "address", listener.Addr().String(), "announced", n.address)
	return nil
}
