package bus

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
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
}

// Embedded is a NATS server in this process.
type Embedded struct{ srv *server.Server }

// startTime is how long the server may need until it accepts connections.
const startTime = 10 * time.Second

// Embed starts a server and returns when it accepts connections.
func Embed(cfg EmbedConfig) (*Embedded, error) {
	if cfg.MaxMemory == 0 {
		cfg.MaxMemory = 256 << 20
	}
	// Signals and logs belong to this process. The server has no subjects of its own on disk: the store
	// folder is for its bookkeeping.
	srv, err := server.NewServer(&server.Options{
		ServerName: "stator", Host: cfg.Host, Port: cfg.Port, DontListen: cfg.Host == "",
		JetStream: true, StoreDir: cfg.Dir, JetStreamMaxMemory: cfg.MaxMemory, JetStreamMaxStore: 1 << 20,
		NoSigs: true, NoLog: true,
	})

	if err != nil {
		return nil, fmt.Errorf("start bus: %w", err)
	}

	srv.Start()
	if !srv.ReadyForConnections(startTime) {
		srv.Shutdown()
		return nil, errors.New("start bus: the NATS server accepted no connections within 10 s; is its port free?")
	}
	return &Embedded{srv}, nil
}

// options returns the options of a client in this process.
func (e *Embedded) options() []nats.Option {
	return []nats.Option{nats.InProcessServer(e.srv)}
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
