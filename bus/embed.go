package bus

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// EmbedConfig says how to run a NATS server in this process.
type EmbedConfig struct {
	// Listen is host and port for other processes; an empty host listens nowhere, and only this
	// process can connect.
	Host string
	Port int
	// Dir is a folder for the server's bookkeeping; its data stay in memory.
	Dir string
	// MaxMemory bounds the buckets. Default 256 MiB.
	MaxMemory int64
}

// Embedded is a NATS server in this process.
type Embedded struct{ srv *server.Server }

// Embed starts a server and returns when it takes connections.
func Embed(cfg EmbedConfig) (*Embedded, error) {
	if cfg.MaxMemory == 0 {
		cfg.MaxMemory = 256 << 20
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "stator", Host: cfg.Host, Port: cfg.Port, DontListen: cfg.Host == "",
		JetStream: true, StoreDir: cfg.Dir, JetStreamMaxMemory: cfg.MaxMemory, JetStreamMaxStore: 1 << 20,
		NoSigs: true, NoLog: true,
	})

	if err != nil {
		return nil, fmt.Errorf("start bus: %w", err)
	}

	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("start bus: the NATS server took no connections within 10 s; is its port free?")
	}
	return &Embedded{srv}, nil
}

// URL is where other processes connect; empty when the server listens nowhere.
func (e *Embedded) URL() string {
	if e.srv.Addr() == nil {
		return ""
	}
	return e.srv.ClientURL()
}

// Close stops the server.
func (e *Embedded) Close() {
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
}
