package scenario

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/test/process"
)

// zipped returns a body as gzip.
func zipped(t *testing.T, body io.Reader) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, err = io.Copy(w, body)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestCompressedBodiesReachWorkersPlain: engines do not decompress, so Envoy does, with and without a router.
func TestCompressedBodiesReachWorkersPlain(t *testing.T) {
	t.Parallel()
	for _, withRouter := range []bool{true, false} {
		t.Run(fmt.Sprintf("router=%v", withRouter), func(t *testing.T) {
			w := startBackend(t, nil)
			e := startEdge(t, withRouter, "decisionTimeout: 5s", simModel("sim", w))
			plain := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":%q}]}`, strings.Repeat("Say it again. ", 100))
			before := len(w.got())
			r, err := e.send(t.Context(), http.MethodPost, chatPath, zipped(t, strings.NewReader(plain)), "content-encoding", "gzip")
			got := w.got()
			if err != nil || r.status != 200 || len(got) != before+1 {
				t.Fatalf("status %d, %d requests, %v: %s", r.status, len(got)-before, err, r.body)
			}
			if last := got[before]; last.body != plain || last.header.Get("content-encoding") != "" {
				t.Errorf("the worker got %d bytes with content-encoding %q", len(last.body), last.header.Get("content-encoding"))
			}
		})
	}
}

// residentMiB returns the memory of a process.
func residentMiB(t *testing.T, pid int) int {
	t.Helper()
	resident, err := process.Resident(pid)
	if err != nil {
		t.Fatal(err)
	}
	return int(resident >> 20)
}

// TestDecompressionBombsAreRefused: 61 KB become 60 MiB. Envoy stops at the bound of bodies and answers 413, and a
// second bomb needs no more memory than the first.
func TestDecompressionBombsAreRefused(t *testing.T) {
	t.Parallel()
	decompressionBombsAreRefused(t)
}

// decompressionBombsAreRefused is TestDecompressionBombsAreRefused with the Envoy of the environment.
func decompressionBombsAreRefused(t *testing.T) {
	t.Helper()
	for _, withRouter := range []bool{true, false} {
		t.Run(fmt.Sprintf("router=%v", withRouter), func(t *testing.T) {
			w := startBackend(t, nil)
			e := startEdge(t, withRouter, "maxBodyBytes: 4194304", simModel("sim", w))
			before := len(w.got())
			bomb := zipped(t, io.LimitReader(letters{}, 60<<20))
			began := residentMiB(t, e.process.PID())
			for range 16 {
				r, err := e.send(t.Context(), http.MethodPost, chatPath, bomb, "content-encoding", "gzip")
				if err != nil || r.status != 413 || r.error.Code != "request_too_large" {
					t.Errorf("a bomb of %d bytes: status %d, %v: %.200s", len(bomb), r.status, err, r.body)
				}
			}
			// Each of two threads may have expanded one buffer of 32 KiB, 1,032 times.
			if now := residentMiB(t, e.process.PID()); now > began+128 {
				t.Errorf("Envoy has %d MiB after sixteen bombs, and had %d", now, began)
			}
			if n := len(w.got()) - before; n != 0 {
				t.Errorf("%d bombs reached the worker", n)
			}
		})
	}
}

// letters is an endless text.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// TestSlowRequestsEnd: a request whose headers or body do not arrive in time is ended, and a client learns why.
func TestSlowRequestsEnd(t *testing.T) {
	t.Parallel()
	w := startBackend(t, nil)
	e := startEdge(t, true, "headersTimeout: 500ms, bodyTimeout: 1s", simModel("sim", w))
	before := len(w.got())
	for name, begin := range map[string]string{
		"headers": "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n",
		"body":    "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, begin); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil || !strings.Contains(string(answer), "408 Request Timeout") || !strings.Contains(string(answer), `"code":"request_timeout"`) {
			t.Errorf("slow %s: %v: %s", name, err, answer)
		}
		_ = c.Close()
	}
	if n := len(w.got()) - before; n != 0 {
		t.Errorf("%d slow requests reached the worker", n)
	}
	e.assertNothingBooked()
}

// TestErrorsOfEnvoyHaveTextCodes: typed clients expect a code to be a text or null.
func TestErrorsOfEnvoyHaveTextCodes(t *testing.T) {
	t.Parallel()
	e := startEdge(t, true, "", simModel("sim", startBackend(t, nil)))
	for _, c := range []struct {
		request string
		want    string
	}{
		{"GET /v1/models HTTP/1.1\r\n\r\n", "400 Bad Request"},                             // no host
		{"GET /v1/models HTTP/1.1\r\nhost: x\r\nbad header: x\r\n\r\n", "400 Bad Request"}, // a space in a name
		{"GET /v1/models HTTP/1.0\r\n\r\n", "200 OK"},                                      // nginx's default for upstreams
		{"GET /v1/models HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", "403 Forbidden"},
		{"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + strings.Repeat("x", 70_000) + "\r\n\r\n", "431 Request Header Fields Too Large"},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, c.request)
		status, text := "", []byte(nil)
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			status = r.Status
			text, err = io.ReadAll(r.Body)
		}
		_ = conn.Close()
		bad := status != "200 OK" && !strings.Contains(string(text), `"code":"gateway_error"`)
		if err != nil || status != c.want || bad {
			t.Errorf("%.60q: %s %s, %v", c.request, status, text, err)
		}
	}
}

// TestConnectionsAreBounded: connections beyond the bound are closed, those before it go on, and Envoy's admin server,
// which is a socket that no other user can reach, still answers.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const bound = 8
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
gateway: {maxConnections: %d}
models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 1}]}]
`, bound)))
	served := 0
	for range 3 * bound {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			continue
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, "GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
		var answer [12]byte
		if _, err := io.ReadFull(c, answer[:]); err == nil && string(answer[:]) == "HTTP/1.1 200" {
			served++
		}
	}
	if served == 0 || served > bound {
		t.Errorf("%d connections were served", served)
	}
	if _, err := get("http://" + g.admin + "/readyz"); err != nil {
		t.Errorf("Envoy's state cannot be read: %v", err)
	}
}

// TestIdlestConnectionsEndFirst: when all connections that clients may have are open, those without a request end soon, long before
// gateway.connectionIdleTimeout, and new clients are served. Connections with requests go on.
func TestIdlestConnectionsEndFirst(t *testing.T) {
	t.Parallel()
	const bound = 20
	g := up(t, "--config", configFile(t, fmt.Sprintf(`
gateway: {maxConnections: %d, connectionIdleTimeout: 1h}
models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 1}]}]
`, bound)))

	var all []net.Conn
	for range bound {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		all = append(all, c)
	}
	used, silent := all[:bound/4], all[bound/4:]
	ask := func(c net.Conn) error {
		_, _ = io.WriteString(c, "GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r.Body)
		return err
	}

	var asking sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for _, c := range used {
		asking.Go(func() {
			for ctx.Err() == nil {
				if err := ask(c); err != nil {
					t.Errorf("a connection with requests: %v", err)
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	for _, c := range silent {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a silent connection: %v", err)
		}
	}
	stop()
	asking.Wait()
	if _, err := get(g.url + "/live"); err != nil {
		t.Errorf("a new client: %v", err)
	}
}
