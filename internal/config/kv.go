package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// The values of KV.DiskWrite and KV.ObjectWrite.
const (
	WriteAll    = "all"
	WriteReused = "reused"
)

// The values of KV.PeerTransport.
const (
	PeerTCP  = "tcp"
	PeerNIXL = "nixl"
)

// The least sizes of tiers: enough for a few blocks of a large model.
const (
	minHostBytes = 1 << 20
	minDiskBytes = 1 << 20
)

func (k *KV) setDefaults() {
	k.DiskWrite = WriteAll
	k.ObjectWrite = WriteReused
	k.Region = "us-east-1"
	k.Prefix = "stator"
	k.PeerTransport = PeerTCP
}

// kv checks the store of KV blocks of a model.
func (v *validator) kv(m *Model, path string) {
	k := &m.KV
	if k.HostBytes == 0 {
		v.is(k.DiskPath == "" && k.Bucket == "" && len(k.Peers) == 0 && k.PeerListen == "" && k.PeerTokenFile == "", path+".hostBytes",
			"is required with diskPath, bucket, peers, peerListen or peerTokenFile: blocks pass through host memory")
		return
	}
	v.is(k.HostBytes >= minHostBytes, path+".hostBytes", "is %d: it must be at least %d", k.HostBytes, minHostBytes)
	v.is((k.DiskPath == "") == (k.DiskBytes == 0), path+".diskPath", "and diskBytes are given together or not at all")
	v.is(k.DiskBytes == 0 || k.DiskBytes >= minDiskBytes, path+".diskBytes", "is %d: it must be at least %d", k.DiskBytes, minDiskBytes)
	v.oneOf(k.DiskWrite, []string{WriteAll, WriteReused}, path+".diskWrite")
	v.oneOf(k.ObjectWrite, []string{WriteAll, WriteReused}, path+".objectWrite")
	v.is(k.ObjectBytes >= 0, path+".objectBytes", "must not be negative")

	if k.Bucket != "" {
		u, err := url.Parse(k.Endpoint)
		v.is(err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https"), path+".endpoint",
			"is %q: use the URL of the S3 server, such as https://s3.eu-central-1.amazonaws.com or http://minio:9000", k.Endpoint)
	}
	v.kvPeers(k, path)
	usesIt := func(l Launch) bool { return l.UsesStore() }
	v.is(slices.ContainsFunc(m.Launch, usesIt), path,
		"has no effect: no launch has an engine that uses it, which are sim, and vllm without other connectors in args.kv-transfer-config")
}

// maxKVPeers is the highest number of other nodes that a node fetches blocks from.
const maxKVPeers = 256

// kvPeers checks the exchange of blocks with other nodes.
func (v *validator) kvPeers(k *KV, path string) {
	v.is(len(k.Peers) <= maxKVPeers, path+".peers", "has %d addresses: there may be %d", len(k.Peers), maxKVPeers)
	for i, address := range k.Peers {
		v.peerAddress(address, fmt.Sprintf("%s.peers[%d]", path, i))
	}
	if k.PeerListen != "" {
		listen := k.PeerListen
		if strings.HasPrefix(listen, ":") {
			listen = "[::]" + listen
		}
		_, err := netip.ParseAddrPort(listen)
		v.is(err == nil, path+".peerListen", "is %q: use ip:port or :port, such as 10.0.0.1:7600", k.PeerListen)
	}
	if k.PeerAddress != "" {
		v.is(k.PeerListen != "", path+".peerAddress", "needs peerListen, without which this node serves no other")
		v.peerAddress(k.PeerAddress, path+".peerAddress")
	}
	v.is(k.PeerTokenFile != "" || len(k.Peers) == 0 && k.PeerListen == "", path+".peerTokenFile",
		"is required with peers or peerListen, because who reaches the port could fetch blocks; `openssl rand -hex 32` makes a token")
	v.oneOf(k.PeerTransport, []string{PeerTCP, PeerNIXL}, path+".peerTransport")
	v.is(k.PeerTransport != PeerNIXL || k.PeerTokenFile != "", path+".peerTransport",
		"is nixl, and no other node is used: set peerTokenFile")
	v.is(k.NIXLLibrary == "" || k.PeerTransport == PeerNIXL, path+".nixlLibrary", "has no effect: set peerTransport: nixl")
}

// peerAddress checks an address to which other nodes, or this one, connect.
func (v *validator) peerAddress(address, path string) {
	at, err := netip.ParseAddrPort(address)
	_, _, isName := fleet.SplitName(address)
	isIP := err == nil && at.Port() > 0 && !at.Addr().IsUnspecified()
	v.is(isIP || isName, path, "is %q: use an IP or a DNS name with a port, such as 10.0.0.2:7600", address)
}
