package scenario

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestIdleConnectionsEnd: a connection without a request ends after gateway.connectionIdleTimeout, one on which nothing was ever sent
// too. So connections that are only held keep out others for that time alone. An answer that takes longer is not cut off.
func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	w := startBackend(t, func(_ *backend, out http.ResponseWriter, _ string) {
		time.Sleep(1500 * time.Millisecond)
		_, _ = fmt.Fprint(out, `{"choices":[]}`)
	})
	e := startEdge(t, true, "connectionIdleTimeout: 500ms", simModel("sim", w))
	at := strings.TrimPrefix(e.url, "http://")

	var silent []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		silent = append(silent, c)
	}
	r, err := e.send(t.Context(), http.MethodPost, "/v1/completions", []byte(`{"model":"sim","prompt":"hello"}`))
	if err != nil || r.status != http.StatusOK {
		t.Errorf("a slow answer: %d %s, %v", r.status, r.body, err)
	}
	for _, c := range silent {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a silent connection: %v", err)
		}
	}
}
