package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// KV is the store of KV blocks of a model, on each node whose agent launches engines of it: see docs/kv.md.
type KV struct {
	// HostBytes is the host memory for blocks on each node. 0 means that there is no store.
	HostBytes int64 `yaml:"hostBytes"`
	// PeerTokenFile is a file with the secret that all nodes of the model share, of 16 or more characters. With it, the host
	// memory of other nodes with this model is searched before the disk. Nodes find each other by the bus. It also authenticates
	// the blocks in the bucket: a node loads only blocks that nodes with the same secret have written, or blocks without a secret
	// if it has none itself.
	PeerTokenFile string `yaml:"peerTokenFile" file:"relative" default:"no other node is used; required with peers or peerListen"`
	// PeerListen is the address on which this node sends blocks of its host memory to others, such as "10.0.0.1:7600", or ":7600" for all
	// addresses of this host. Port 0 takes a free one. Nodes send each other blocks by TLS, and prove that they have the token.
	PeerListen string `yaml:"peerListen" default:"no other node is served"`
	// PeerAddress is the address, host:port, that other nodes are given, if they cannot reach the address of peerListen: behind
	// NAT, for example.
	PeerAddress string `yaml:"peerAddress" default:"the address of peerListen; on all addresses, the IP of --advertise-address"`
	// Peers are the addresses, host:port, of other nodes' peerListen, beside the ones that are found by the bus. This node's own
	// address may be among them, so that all nodes can have one list.
	Peers []string `yaml:"peers"`
	// PeerTransport is the way that blocks come from peers: "tcp", or "nixl" for NIXL if both nodes have it, and TCP if NIXL
	// fails. Measure first: docs/nixl.md.
	PeerTransport string `yaml:"peerTransport"`
	// NIXLLibrary is the path of libnixl_capi.so, of a folder or of a Python environment with it.
	NIXLLibrary string `yaml:"nixlLibrary" file:"relative" default:"$NIXL_LIB_DIR, then $VIRTUAL_ENV"`
	// DiskPath is a folder for blocks on a local disk, which belongs to one agent.
	DiskPath string `yaml:"diskPath" file:"relative" default:"no disk"`
	// DiskBytes is the size of the file in it, which is reserved at once.
	DiskBytes int64 `yaml:"diskBytes"`
	// DiskWrite selects the blocks that are copied to the disk: "all", or only "reused" ones, which were stored or found a
	// second time lately.
	DiskWrite string `yaml:"diskWrite"`
	// Bucket is the bucket of an S3 server for blocks that all nodes share. Its credentials come from the environment:
	// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the instance or pod.
	Bucket string `yaml:"bucket" default:"no object store"`
	// Endpoint is the URL of the server, such as "http://minio:9000".
	Endpoint string `yaml:"endpoint" default:"required with bucket"`
	// Region is part of the signature of requests.
	Region string `yaml:"region"`
	// PathStyle puts the bucket into the path of requests instead of the host's name, as most servers outside of Amazon need it.
	PathStyle bool `yaml:"pathStyle"`
	// Prefix begins the names of all objects.
	Prefix string `yaml:"prefix"`
	// ObjectBytes is the size above which a node deletes the oldest objects that it has written. 0 is no bound; all are deleted after
	// seven days.
	ObjectBytes int64 `yaml:"objectBytes"`
	// ObjectWrite selects the blocks that are copied to the object store: "all", or only "reused" ones, which were stored or
	// found a second time lately.
	ObjectWrite string `yaml:"objectWrite"`
}

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
