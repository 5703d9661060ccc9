package main

import (
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/listen"
)

// TestAdminConnectionsAreBounded has as many idle connections as an admin port takes: a request waits until one of them ends.
func TestAdminConnectionsAreBounded(t *testing.T) {
	port, err := openAdmin("127.0.0.1:0", &listen.Doors{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer port.close()
	var idle []net.Conn
	for range adminConnections {
		conn, err := net.Dial("tcp", port.address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		idle = append(idle, conn)
	}

	answered := make(chan error, 1)
	go func() {
		answer, err := http.Get(port.url() + "/healthz")
		if err == nil {
			err = answer.Body.Close()
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a request beside %d connections was answered: %v", adminConnections, err)
	case <-time.After(200 * time.Millisecond):
	}
	_ = idle[0].Close()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
