package enginetls_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

const (
	name   = "stator-engine"
	within = 10 * time.Second
)

var quiet = slog.New(slog.DiscardHandler)

// serveTLS starts an engine with the certificate in two files, which it reads at each connection. With a CA it asks for certificates.
func serveTLS(t *testing.T, cert, key, clientCA string) (address string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	}}
	if clientCA != "" {
		text, err := os.ReadFile(clientCA)
		if err != nil {
			t.Fatal(err)
		}
		server.TLS.ClientAuth, server.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		server.TLS.ClientCAs.AppendCertsFromPEM(text)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// ask sends a request to an engine by a new connection.
func ask(c *enginetls.Client, address string) error {
	client := &http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true, DialContext: c.Dial(within)}}
	resp, err := client.Get("http://" + address)
	if err == nil {
		err = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
	}
	return err
}

func newClient(t *testing.T, s enginetls.Settings) *enginetls.Client {
	t.Helper()
	c, err := enginetls.New(s, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRefusals: each reason why an engine is not used has an error that says what to change. Each is an error of a dial, because the engine
// has received no request.
func TestRefusals(t *testing.T) {
	ca, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	good, goodKey := ca.Issue(name)
	foreign, foreignKey := other.Issue(name)
	another, anotherKey := ca.Issue("another")
	past, pastKey := ca.IssueExpired("past")
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(plain.Close)

	own := enginetls.Settings{CA: ca.CA(), Cert: good, Key: goodKey, ServerName: name}
	without := enginetls.Settings{CA: ca.CA(), ServerName: name}
	excepted := own
	var err error
	if excepted.Except, err = fleet.ParseAddresses([]string{plain.Listener.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		settings enginetls.Settings
		address  string
		want     string // empty if it is served
	}{
		{own, serveTLS(t, good, goodKey, ca.CA()), ""},
		{without, serveTLS(t, good, goodKey, ""), ""},
		{excepted, serveTLS(t, good, goodKey, ca.CA()), ""},
		{excepted, plain.Listener.Addr().String(), ""},
		{excepted, strings.Replace(plain.Listener.Addr().String(), "127.0.0.1", "localhost", 1), ""},
		{own, serveTLS(t, foreign, foreignKey, ""), "no authority in engineTLS.caFile has signed the engine's certificate: add"},
		{own, serveTLS(t, another, anotherKey, ""), "the engine's certificate is not for stator-engine: issue it for that name"},
		{
			enginetls.Settings{CA: ca.CA(), ServerName: "past"}, serveTLS(t, past, pastKey, ""),
			"the engine's certificate is not valid now: renew it",
		},
		{own, plain.Listener.Addr().String(), "the engine speaks no TLS: start it with a certificate, or list its address in engineTLS.except"},
		{without, serveTLS(t, good, goodKey, ca.CA()), "the engine refuses this client: set engineTLS.certFile"},
		{own, serveTLS(t, good, goodKey, other.CA()), "the engine refuses this client: set engineTLS.certFile"},
	} {
		err := ask(newClient(t, c.settings), c.address)
		if c.want == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		var op *net.OpError
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &op) || op.Op != "dial" {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestRotation: an authority that is added, and new certificates of it, count for the next connections. Files that cannot be used leave the
// last ones in force.
func TestRotation(t *testing.T) {
	ca, next := testkit.NewAuthority(t), testkit.NewAuthority(t)
	cert, key := ca.Issue(name)
	address := serveTLS(t, cert, key, "")
	later, laterKey := next.Issue(name)
	laterAddress := serveTLS(t, later, laterKey, "")
	var log testkit.Log
	c, err := enginetls.New(enginetls.Settings{CA: ca.CA(), ServerName: name}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(c, laterAddress); err == nil {
		t.Fatal("the next authority is known")
	}

	write := func(files ...string) {
		t.Helper()
		var all []byte
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text...)
		}
		if err := os.WriteFile(ca.CA(), all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ca.CA(), next.CA())
	testkit.Eventually(t, "the next authority counts", func() bool { return ask(c, laterAddress) == nil })
	if err := ask(c, address); err != nil {
		t.Error(err)
	}

	write(next.CA())
	testkit.Eventually(t, "the first authority is gone", func() bool { return ask(c, address) != nil })
	write()
	testkit.Eventually(t, "the empty file is refused", func() bool {
		if err := ask(c, laterAddress); err != nil {
			t.Fatal(err)
		}
		return log.Contains("changed files cannot be used")
	})
}

// TestUnusableFiles: a process that starts with wrong files says which key names them.
func TestUnusableFiles(t *testing.T) {
	ca := testkit.NewAuthority(t)
	cert, key := ca.Issue(name)
	if c, err := enginetls.New(enginetls.Settings{ServerName: name}, quiet); c != nil || err != nil {
		t.Errorf("%v, %v", c, err)
	}
	for want, s := range map[string]enginetls.Settings{
		"read engineTLS.caFile":                         {CA: key},
		"read engineTLS.certFile and engineTLS.keyFile": {CA: ca.CA(), Cert: cert, Key: cert},
	} {
		if _, err := enginetls.New(s, quiet); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestIsServed distinguishes servers with TLS, also those that ask for a certificate, from others.
func TestIsServed(t *testing.T) {
	ca := testkit.NewAuthority(t)
	cert, key := ca.Issue(name)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if !enginetls.IsServed(ctx, serveTLS(t, cert, key, ca.CA())) || enginetls.IsServed(ctx, plain.Listener.Addr().String()) {
		t.Error("servers are not distinguished")
	}
}
