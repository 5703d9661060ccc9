package adminclient_test

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/test/testkit"
)

// TestAdminPortsAreAsked asks a port on loopback, a socket, and a port with TLS, with a token.
func TestAdminPortsAreAsked(t *testing.T) {
	ca := testkit.NewAuthority(t)
	doors := listen.Doors{Insecure: true, TokenFile: filepath.Join(t.TempDir(), "token")}
	if err := os.WriteFile(doors.TokenFile, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	withTLS := doors
	withTLS.CertFile, withTLS.KeyFile = ca.Issue("localhost", "127.0.0.1")

	for name, c := range map[string]struct {
		doors           listen.Doors
		address, prefix string
	}{
		"loopback": {doors, "127.0.0.1:0", ""},
		"socket":   {doors, "unix://" + filepath.Join(t.TempDir(), "a.sock"), "unix://"},
		"TLS":      {withTLS, "0.0.0.0:0", "https://"},
	} {
		ln, err := c.doors.ForOperators(c.address, "--x", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("Authorization"))
		})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = srv.Serve(ln)
		}()

		address := c.prefix + strings.Replace(ln.Addr().String(), "[::]", "127.0.0.1", 1)
		client, err := adminclient.New(adminclient.Config{Address: address, TokenFile: doors.TokenFile, CAFile: ca.CA()}, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.HTTP().Get(client.URL("/page"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "/page Bearer 0123456789abcdef" {
			t.Errorf("%s: %q, %v", name, body, err)
		}
		client.HTTP().CloseIdleConnections()
		_ = srv.Close()
		<-done
	}
}

// TestUnusableFiles: a token or a CA that cannot be used is an error that names the flag.
func TestUnusableFiles(t *testing.T) {
	for want, c := range map[string]adminclient.Config{
		"--admin-token-file: read token": {TokenFile: "absent"},
		"read --admin-ca":                {CAFile: "absent"},
		"has no certificate in PEM":      {CAFile: "adminclient_test.go"},
	} {
		if _, err := adminclient.New(c, time.Second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}
