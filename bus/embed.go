package bus

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/internal/listen"
)

// EmbedConfig is read by Embed and not changed later.
type EmbedConfig struct {
	// Host and Port are the address for other processes; port -1 is any free port. With an empty host
	// the server does not listen, and only this process can connect.
	Host string
	Port int
	// Dir is a folder for files of the server. All data of the bus stay in memory, because the process
	// that wrote a value can write it again.
	Dir string
	// MaxMemory bounds the buckets in bytes; default 256 MiB. Leases and the plan need some hundred
	// bytes for each worker and pool.
	MaxMemory int64

	// Users may connect, and use the subjects of their role in Cluster. Without users every client
	// may do everything.
	Users   []User
	Cluster string
	// TLSCert and TLSKey are files of the certificate and key of the server, in PEM.
	TLSCert, TLSKey string
	// ClientCA is a file of the certificates that must have signed the clients' certificates, in PEM. With
	// it every client needs a certificate, beside its user.
	ClientCA string
	// Insecure allows a server without users or TLS to listen beyond loopback.
	Insecure bool
	// Log gets a line when the files of the certificate have changed. Nil discards it.
	Log *slog.Logger
}

// ownerName is the user of the process that embeds the server.
const ownerName = "owner"

// Validate returns an error for a server that strangers could use: one that listens beyond loopback needs TLS, and users or
// certificates of clients. It names the flags of "stator bus".
func (cfg *EmbedConfig) Validate() error {
	hasTLS := cfg.TLSCert != ""
	switch {
	case hasTLS != (cfg.TLSKey != ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case cfg.ClientCA != "" && !hasTLS:
		return errors.New("--client-ca needs --tls-cert and --tls-key")
	case cfg.Host == "" || cfg.Insecure:
		return nil
	}

	ip, err := netip.ParseAddr(cfg.Host)
	if err == nil && ip.IsLoopback() || hasTLS && (len(cfg.Users) > 0 || cfg.ClientCA != "") {
		return nil
	}
	return fmt.Errorf("the bus would listen on %s without a lock: everyone who reaches it could add workers and receive prompts. "+
		"Pass --users, --tls-cert and --tls-key, or --insecure on a network that you trust", cfg.Host)
}

// Embedded is a NATS server in this process.
type Embedded struct {
	srv         *server.Server
	password    string          // of the owner; empty if the server has no users
	peerOptions *server.Options // of EmbedPeers
}

// startTime is the longest time that the server may need until it accepts connections.
const startTime = 10 * time.Second

// Embed starts a server and returns when it accepts connections.
func Embed(cfg EmbedConfig) (*Embedded, error) {
	if cfg.MaxMemory == 0 {
		cfg.MaxMemory = 256 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	// Signals and logs belong to this process. The server has no subjects of its own on disk: the store
	// folder is for its bookkeeping.
	opts := &server.Options{
		ServerName: "stator", Host: cfg.Host, Port: cfg.Port, DontListen: cfg.Host == "",
		JetStream: true, StoreDir: cfg.Dir, JetStreamMaxMemory: cfg.MaxMemory, JetStreamMaxStore: 1 << 20,
		NoSigs: true,
	}
	e := &Embedded{}
	if len(cfg.Users) > 0 {
		e.password = rand.Text()
		opts.Users = serverUsers(&cfg, e.password)
	}
	if err := setTLS(opts, &cfg); err != nil {
		return nil, fmt.Errorf("start bus: %w", err)
	}

	var err error
	e.srv, err = server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start bus: %w", err)
	}

	e.srv.SetLogger(&serverLog{log: cfg.Log}, false, false)
	e.srv.Start()
	if !e.srv.ReadyForConnections(startTime) {
		e.srv.Shutdown()
		return nil, errors.New("start bus: the NATS server accepted no connections within 10 s; is its port free?")
	}
	return e, nil
}

// serverUsers returns the users of the server, and its owner. The owner may do everything: a user without permissions has
// all of them. Its password never leaves this process.
func serverUsers(cfg *EmbedConfig, ownerPassword string) []*server.User {
	users := []*server.User{{Username: ownerName, Password: ownerPassword}}
	for i := range cfg.Users {
		u := &cfg.Users[i]
		allowed := u.Permissions(cfg.Cluster)
		permissions := &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: allowed.Publish},
			Subscribe: &server.SubjectPermission{Allow: allowed.Subscribe},
		}
		users = append(users, &server.User{Username: u.Name, Password: cmp.Or(u.PasswordHash, u.Password), Permissions: permissions})
	}
	return users
}

// setTLS has the server use the configured certificates.
func setTLS(opts *server.Options, cfg *EmbedConfig) error {
	if cfg.TLSCert == "" {
		return nil
	}

	var err error
	opts.TLSConfig, err = server.GenTLSConfig(&server.TLSConfigOpts{
		CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey, CaFile: cfg.ClientCA, Verify: cfg.ClientCA != "",
	})
	if err != nil {
		return fmt.Errorf("TLS of the bus: %w", err)
	}
	// Certificates are renewed while the server runs.
	certificate, err := listen.OpenCertificate(cfg.TLSCert, cfg.TLSKey, cfg.Log)
	if err != nil {
		return fmt.Errorf("TLS of the bus: %w", err)
	}
	opts.TLSConfig.Certificates = nil
	opts.TLSConfig.GetCertificate = certificate.Get
	opts.TLS = true
	opts.TLSVerify = cfg.ClientCA != ""
	opts.TLSTimeout = tlsTime.Seconds()
	return nil
}

// tlsTime is the longest time that a client may take for the TLS handshake.
const tlsTime = 5 * time.Second

// PeersConfig is read by EmbedPeers and not changed later.
type PeersConfig struct {
	// Host and Port are the address for the servers of the other processes; port -1 is any free port.
	Host string
	Port int
	// Peers are the addresses of such servers, as host:port. A name stands for all its addresses, its own among them. One address
	// that answers is enough: servers learn of the others from each other. Those that do not answer are tried again for ever.
	Peers []string
	// TLS encrypts the connections between servers, and demands certificates of both sides; nil for none.
	TLS *tls.Config
}

// EmbedPeers starts a server that passes messages on to the servers of other processes like this one. It has no buckets: leases and plans
// need a bus of their own. Clients cannot connect to it, except for this process.
func EmbedPeers(cfg PeersConfig) (*Embedded, error) {
	// A server of a cluster listens for clients, too. Nobody but this process has the password.
	e := &Embedded{password: rand.Text()}
	opts := &server.Options{
		ServerName: "stator-" + strings.ToLower(rand.Text()), NoSigs: true, NoLog: true,
		Host: "127.0.0.1", Port: server.RANDOM_PORT, Username: ownerName, Password: e.password,
		Cluster: server.ClusterOpts{
			Name: "stator", Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLS, TLSTimeout: tlsTime.Seconds(), ConnectRetries: maxRetries,
		},
	}
	opts.Routes = routesTo(cfg.Peers)
	e.peerOptions = opts

	var err error
	e.srv, err = server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("start the server for peers: %w", err)
	}
	e.srv.Start()
	if !e.srv.ReadyForConnections(startTime) {
		e.srv.Shutdown()
		return nil, fmt.Errorf("start the server for peers: it does not listen on %s:%d after 10 s; is the port free?", cfg.Host, cfg.Port)
	}
	return e, nil
}

// routesTo returns the addresses of servers as NATS has them.
func routesTo(peers []string) (routes []*url.URL) {
	for _, at := range peers {
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: at})
	}
	return routes
}

// SetPeers replaces the addresses of the other servers. Connections to those that are still there go on.
func (e *Embedded) SetPeers(peers []string) error {
	opts := e.peerOptions.Clone()
	opts.Routes = routesTo(peers)
	if err := e.srv.ReloadOptions(opts); err != nil {
		return fmt.Errorf("replace the addresses of peers: %w", err)
	}
	return nil
}

// maxRetries is the number of attempts to reach a peer that another one has named. Addresses of pods do not come back.
const maxRetries = 30

// PeersAddress returns the address at which other servers reach this one.
func (e *Embedded) PeersAddress() string { return e.srv.ClusterAddr().String() }

// Peers returns the number of servers of other processes that are connected.
func (e *Embedded) Peers() int { return e.srv.NumRoutes() }

// options returns the options of the owner's client, which needs no port.
func (e *Embedded) options() []nats.Option {
	opts := []nats.Option{nats.InProcessServer(e.srv)}
	if e.password != "" {
		opts = append(opts, nats.UserInfo(ownerName, e.password))
	}
	return opts
}

// URL returns the address for other processes; empty if the server does not listen.
func (e *Embedded) URL() string {
	if e.srv.Addr() == nil {
		return ""
	}
	return e.srv.ClientURL()
}

// Close stops the server and waits until it has stopped. Connections of clients are closed.
func (e *Embedded) Close() {
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
}
