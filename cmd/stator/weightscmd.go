package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/internal/weights"
)

const weightsAbout = `Copies the files of a model from node to node, so that new engines do not all download them from one slow
place: see docs/weights.md.

  serve  serves the files in --dir to other nodes
  fetch  fetches the files into --dir from --peers, and serves them meanwhile if it has a --listen-address
  id     prints the identity of the files in --dir, for --id

Nodes that fetch together form a chain: each sends its chunks to the next one. Every chunk is compared with its SHA-256.
A fetch that was killed goes on where it was. fetch ends when all files are there, and no node fetches from it any more.`

// weightsOptions are the flags of stator weights.
type weightsOptions struct {
	model, dir, id   string
	peers            cli.List
	listenAt, node   string
	receivers        int
	patience, linger time.Duration
	keep             bool
	doors            listen.Doors
	log              *slog.Logger
}

const (
	maxReceivers = 64 // the bound of --receivers
	// weightsStreams is the number of chunks that are fetched at a time, so that a link carries one while another is checked and written.
	weightsStreams = 4
)

// addNodeFlags adds the flags that an agent has, too, with a prefix.
func (o *weightsOptions) addNodeFlags(f *cli.Flags, prefix string) {
	purpose := ""
	if prefix != "" {
		purpose = ", for the files of models: see docs/weights.md"
	}
	f.Var(&o.peers, prefix+"peers",
		"`address` of other nodes, host:port"+purpose+"; a name stands for all its addresses, such as that of a headless Service, this "+
			"node's among them; may be given more than once")
	f.StringVar(&o.listenAt, prefix+"listen-address", "", "`ip:port` at which other nodes reach this one"+purpose+" (default none, and "+
		"127.0.0.1:9016 for stator weights serve)")
	f.StringVar(&o.doors.ClientCAFile, prefix+"client-ca", "",
		"`file` with the CA of the nodes' certificates in PEM, which have the DNS name "+weightsServerName+purpose)
}

// weightsServerName is the DNS name in the certificates of nodes.
const weightsServerName = "stator-weights"

// ensure returns the function by which an agent has the files of models; nil without peers and an address. stop ends the server.
func (o *weightsOptions) ensure(p *process, node string) (
	ensure func(ctx context.Context, model, folder string, progress func(done, total int64)) error, stop func(), err error,
) {
	if o.listenAt == "" && len(o.peers) == 0 {
		return nil, func() {}, nil
	}
	ca := o.doors.ClientCAFile
	o.doors = p.doors
	o.doors.ClientCAFile = ca
	o.node, o.receivers = uniqueNode(node), 1
	o.patience, o.log = agentPatience, p.log
	cfg := o.receiver()
	end, between, err := o.listen(cfg.Share)
	if err != nil {
		return nil, nil, err
	}
	o.connect(&cfg, between)
	files := weights.NewNode(cfg)
	return files.Ensure, func() {
		files.Close()
		cfg.Client.CloseIdleConnections()
		if err := end(); err != nil {
			p.log.Warn("the files of models were not served to the end", "err", err)
		}
	}, nil
}

// agentPatience is how long an agent waits for a chunk before the start of the engine counts as failed, and begins again.
const agentPatience = 2 * time.Minute

func runWeights(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "weights [serve|fetch|id]", weightsAbout)
	var o weightsOptions
	f.StringVar(&o.model, "model", "", "`name` of the model, which is the same on all nodes")
	f.StringVar(&o.dir, "dir", "", "`folder` of the model's files; fetch makes it, and uses it as it is if it is complete")
	f.StringVar(&o.id, "id", "", "SHA-256 that `stator weights id` prints: other files are not fetched (default: the files of the peers)")
	o.addNodeFlags(f, "")
	f.StringVar(&o.node, "node", "", "`name` of this node among the others (default: the host's, and a random suffix)")
	f.IntVar(&o.receivers, "receivers", 1,
		"nodes that are sent to at a time; more are better where this node's link is faster than theirs")
	f.DurationVar(&o.patience, "patience", 10*time.Minute, "how long fetch waits for the next chunk before it fails")
	f.DurationVar(&o.linger, "linger", time.Minute, "how long fetch goes on for nodes that fetch from it, when it has all files")
	f.BoolVar(&o.keep, "keep", false, "fetch serves until it is stopped; its GET /readyz answers 200 when all files are there")
	f.StringVar(&o.doors.CertFile, "tls-cert", "", "`file` with the certificate of this node in PEM, for both sides")
	f.StringVar(&o.doors.KeyFile, "tls-key", "", "`file` with the key of --tls-cert")
	f.BoolVar(&o.doors.Insecure, "insecure", false, "reach beyond loopback without TLS, where the network is trusted or encrypts")
	logFlags := cli.AddLogFlags(f)
	words, err := f.ReadMixed(args)
	if err != nil {
		return err
	}
	if err := o.check(f, words); err != nil {
		return err
	}
	o.log, err = logFlags.Logger(env.err)
	if err != nil {
		return err
	}

	switch words[0] {
	case "serve":
		return o.serve(ctx, env)
	case "fetch":
		return o.fetch(ctx, env)
	default:
		return o.printID(ctx, env)
	}
}

// check refuses flags that do not fit together.
func (o *weightsOptions) check(f *cli.Flags, words []string) error {
	if len(words) != 1 || words[0] != "serve" && words[0] != "fetch" && words[0] != "id" {
		return f.UsageError("use serve, fetch or id")
	}
	switch what := words[0]; {
	case o.dir == "":
		return f.UsageError("name the folder with --dir")
	case what == "id":
	case o.model == "":
		return f.UsageError("name the model with --model")
	case what == "fetch" && len(o.peers) == 0:
		return f.UsageError("fetch needs the addresses of other nodes: --peers")
	case o.keep && (what != "fetch" || o.listenAt == ""):
		return f.UsageError("--keep is for fetch with a --listen-address")
	case o.receivers < 1 || o.receivers > maxReceivers:
		return f.UsageError("--receivers is from 1 to %d", maxReceivers)
	case o.node != "" && !weights.ValidNode(o.node):
		return f.UsageError("--node is %q: use letters, digits, and . _ - between them", o.node)
	}
	if o.node == "" {
		o.node = uniqueNode("")
	}
	return o.doors.Check()
}

// uniqueNode returns a name of this process among all nodes, also of one host. name is the node's; empty takes the host's.
func uniqueNode(name string) string {
	const random = 8
	return "n-" + nodeName(name) + "-" + strings.ToLower(rand.Text()[:random])
}

// open reads the files of the folder, with a bar on a terminal.
func (o *weightsOptions) open(ctx context.Context, env environment) (*weights.Folder, error) {
	bar := cli.NewProgressBar(env.err)
	defer bar.Clear()
	total, err := weights.Size(o.dir)
	if err != nil {
		return nil, err
	}
	read := int64(0)
	return weights.Open(ctx, o.dir, func(n int) {
		read += int64(n)
		bar.Show(float64(read) / float64(total))
	})
}

func (o *weightsOptions) printID(ctx context.Context, env environment) error {
	f, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	m := f.Manifest()
	fmt.Fprintf(env.out, "%s  %d files, %d bytes\n", m.ID(), len(m.Files), m.Bytes())
	return nil
}

func (o *weightsOptions) serve(ctx context.Context, env environment) error {
	if o.listenAt == "" {
		o.listenAt = "127.0.0.1:9016"
	}
	f, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	share := o.share()
	share.Add(o.model, f)
	stop, _, err := o.listen(share)
	if err != nil {
		return err
	}
	m := f.Manifest()
	o.log.Info("serving the files of a model", "model", o.model, "address", o.listenAt, "id", m.ID(), "bytes", m.Bytes())
	<-ctx.Done()
	return stop()
}

func (o *weightsOptions) share() *weights.Share {
	return weights.NewShare(weights.ShareConfig{Node: o.node, Receivers: o.receivers, Log: o.log})
}

// receiver returns the settings of a receiver, which connect completes.
func (o *weightsOptions) receiver() weights.ReceiverConfig {
	return weights.ReceiverConfig{
		Model: o.model, Dir: o.dir, Node: o.node, Streams: weightsStreams, Patience: o.patience, Log: o.log, Share: o.share(),
	}
}

// connect adds the connections to peers, with these TLS settings.
func (o *weightsOptions) connect(cfg *weights.ReceiverConfig, between *tls.Config) {
	cfg.Client = weights.NewClient(between)
	cfg.Peers = func(ctx context.Context) ([]string, error) { return resolvePeers(ctx, o.peers, between != nil) }
}

// listen serves the share until stop is called, if there is an address. It returns the TLS settings between nodes, which may be nil.
func (o *weightsOptions) listen(share *weights.Share) (stop func() error, between *tls.Config, err error) {
	host, err := o.reach()
	if err != nil {
		return nil, nil, err
	}
	between, err = o.doors.ForPeers(host, o.log)
	if err != nil {
		return nil, nil, err
	}
	if between != nil {
		between.ServerName = weightsServerName
	}
	if o.listenAt == "" {
		return func() error { return nil }, between, nil
	}

	ln, err := listen.On(o.listenAt, "--listen-address")
	if err != nil {
		return nil, nil, err
	}
	if between != nil {
		ln = tls.NewListener(ln, between)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- share.Serve(ctx, ln) }()
	return func() error { cancel(); return <-ended }, between, nil
}

// reach returns the host beyond loopback that this node listens on or fetches from, or else one of loopback.
func (o *weightsOptions) reach() (host string, err error) {
	for _, address := range append([]string{o.listenAt}, o.peers...) {
		if address == "" {
			continue
		}
		host, _, err = net.SplitHostPort(address)
		if err != nil {
			return "", fmt.Errorf("--listen-address and --peers take one host:port each: %w", err)
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return host, nil
		}
	}
	return host, nil
}

func (o *weightsOptions) fetch(ctx context.Context, env environment) (err error) {
	cfg := o.receiver()
	if o.id != "" {
		cfg.ID, err = weights.ParseSum(o.id)
		if err != nil {
			return fmt.Errorf("--id: %w", err)
		}
	}
	stop, between, err := o.listen(cfg.Share)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	o.connect(&cfg, between)
	defer cfg.Client.CloseIdleConnections()

	bar := cli.NewProgressBar(env.err)
	last := time.Now()
	cfg.Progress = func(done, total int64) {
		bar.Show(float64(done) / float64(total))
		if bar == nil && time.Since(last) > logProgressEvery {
			last = time.Now()
			o.log.Info("fetching", "model", o.model, "bytes", done, "of", total)
		}
	}
	began := time.Now()
	f, err := weights.Receive(ctx, cfg)
	bar.Clear()
	if err != nil {
		return err
	}
	o.log.Info("all files of the model are there", "model", o.model, "folder", o.dir, "id", f.Manifest().ID(),
		"bytes", f.Manifest().Bytes(), "took", time.Since(began).Round(time.Millisecond))
	o.serveOthers(ctx, cfg.Share)
	return nil
}

// logProgressEvery is the time between two lines of the log about a fetch, without a terminal.
const logProgressEvery = 10 * time.Second

// serveOthers waits for the nodes that fetch from this one.
func (o *weightsOptions) serveOthers(ctx context.Context, share *weights.Share) {
	if o.keep {
		<-ctx.Done()
		return
	}
	const poll = 100 * time.Millisecond
	for end := time.Now().Add(o.linger); !share.IsIdle() && time.Now().Before(end); {
		if backoff.Sleep(ctx, poll) != nil {
			return
		}
	}
}

// resolvePeers returns the addresses of nodes. A name stands for all its addresses.
func resolvePeers(ctx context.Context, peers []string, encrypted bool) (list []string, err error) {
	scheme := "http://"
	if encrypted {
		scheme = "https://"
	}
	for _, p := range peers {
		host, port, splitErr := net.SplitHostPort(p)
		if splitErr != nil {
			return nil, fmt.Errorf("--peers: %w", splitErr)
		}
		found, lookErr := net.DefaultResolver.LookupHost(ctx, host)
		err = errors.Join(err, lookErr)
		for _, ip := range found {
			list = append(list, scheme+net.JoinHostPort(ip, port))
		}
	}
	return list, err
}
