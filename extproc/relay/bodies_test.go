package relay

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// padded returns a completion of n bytes.
func padded(n int) string { return completion + strings.Repeat(" ", n-len(completion)) }

// TestLongAnswers: answers that are on their way hold no memory for bodies, so that the requests of others are all answered.
func TestLongAnswers(t *testing.T) {
	w := newWorld(t)
	w.engine("p", fleet.Prefill, answers(http.StatusOK, "{}"))
	end := make(chan struct{})
	w.engine("d", fleet.Decode, func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(out, "begun")
		_ = http.NewResponseController(out).Flush()
		if r.Header.Get("x-client") == "long" {
			<-end
		}
	})

	var long sync.WaitGroup
	defer long.Wait()
	defer close(end)
	for i := range 13 {
		status, answer := w.stream(t, &long)
		if status != http.StatusOK || answer != "begun" {
			t.Fatalf("stream %d: %d %s", i, status, answer)
		}
	}
	for i := range 20 {
		if status, answer := w.post(completion); status != http.StatusOK {
			t.Errorf("request %d of another client: %d %s", i, status, answer)
		}
	}
	if used := w.budget(); used != 0 {
		t.Errorf("%d bytes of bodies are held", used)
	}
}

// stream sends a large completion, whose answer has begun when it returns, and reads the rest of the answer in long.
func (w *world) stream(t *testing.T, long *sync.WaitGroup) (status int, begun string) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/completions", strings.NewReader(padded(1<<10)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("x-client", "long")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("begun"))
	if _, err := io.ReadFull(response.Body, first); err != nil {
		t.Error(err)
	}
	long.Go(func() {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	})
	return response.StatusCode, string(first)
}

// budget returns the number of bytes of bodies that the relay holds.
func (w *world) budget() int64 { return w.handler.requests.RelayBudget().Used() }

// TestSlowBodies: bodies that arrive slowly never hold more memory than the budget has. Bodies beyond it are refused, and when the
// clients have left nothing is held.
func TestSlowBodies(t *testing.T) {
	const clients = 100
	w := newWorld(t)
	refused := make(chan string, clients)
	var connections []net.Conn
	for i := range clients {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		connections = append(connections, c)
		length := "Content-Length: 1024"
		if i%2 == 0 {
			length = "Transfer-Encoding: chunked"
		}
		_, err = fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: relay\r\n%s\r\n\r\n200\r\n%s", length, strings.Repeat("a", 400))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			line, _ := bufio.NewReader(c).ReadString('\n')
			refused <- line
		}()
	}

	// Each body has room for 1,024 bytes from its first byte on, so that two are held.
	for range clients - 2 {
		if line := <-refused; !strings.Contains(line, "503") {
			t.Errorf("a body beyond the budget was answered with %q", line)
		}
	}
	if used := w.budget(); used != 2<<10 {
		t.Errorf("%d bytes of bodies are held", used)
	}
	for _, c := range connections {
		_ = c.Close()
	}
	testkit.Eventually(t, "no bodies are held", func() bool { return w.budget() == 0 })
}

// TestMethods: engines get POST alone.
func TestMethods(t *testing.T) {
	w := newWorld(t)
	w.engine("d", fleet.Decode, func(http.ResponseWriter, *http.Request) { t.Error("a request has come") })
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodOptions, http.MethodConnect, "PURGE"} {
		r, err := http.NewRequestWithContext(t.Context(), method, w.url+"/v1/completions", strings.NewReader(completion))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed && response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", method, response.StatusCode)
		}
	}
}

// TestOurHeaders: headers between Envoys and routers reach no engine from a client, and no client from an engine.
func TestOurHeaders(t *testing.T) {
	w := newWorld(t)
	w.engine("d", fleet.Decode, func(out http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Stator-") || strings.HasPrefix(name, "X-Gateway-") || name == "X-Data-Parallel-Rank" {
				t.Errorf("an engine has received %s", name)
			}
		}
		out.Header().Set("set-cookie", "a=b")
		out.Header().Set("x-gateway-destination-endpoint", "10.0.0.1:1")
		out.Header().Set("x-engine", "kept")
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/completions", strings.NewReader(completion))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x-stator-decision", "x-stator-worker", "x-stator-affinity", "x-gateway-destination-endpoint-subset",
		"x-gateway-destination-endpoint", "x-data-parallel-rank"} {
		r.Header.Set(name, "1")
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	h := response.Header
	if h.Get("set-cookie") != "" || h.Get("x-gateway-destination-endpoint") != "" || h.Get("x-engine") != "kept" {
		t.Errorf("a client has received %v", h)
	}
}
