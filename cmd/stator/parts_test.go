package main

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/test/testkit"
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

// TestMetricsAlone: the port for Prometheus serves /metrics to everyone, and no other page of the admin port.
func TestMetricsAlone(t *testing.T) {
	at := testkit.Address(t)
	closed, err := openMetrics(at, slog.New(slog.DiscardHandler), newRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	for path, want := range map[string]int{
		"/metrics": 200, "/": 404, "/readyz": 404, "/debug/fleet": 404, "/debug/pprof/heap": 404, "/debug/decisions/latest": 404, "/v1/kv": 404,
	} {
		answer, err := http.Get("http://" + at + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != want || want == 200 && !strings.Contains(string(body), "stator_build_info") {
			t.Errorf("%s: %s: %s", path, answer.Status, body)
		}
	}

	if _, err := openMetrics(at, slog.New(slog.DiscardHandler), newRegistry()); err == nil || !strings.Contains(err.Error(), "--metrics-address") {
		t.Errorf("an address that is taken: %v", err)
	}
}
