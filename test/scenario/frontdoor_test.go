package scenario

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/testkit"
)

// oneSim is the part of a configuration with one simulated engine.
const oneSim = `models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 1}]}]`

// rewrite replaces the text in a file by moving a new file to its place.
func rewrite(t *testing.T, path string, edit func(string) string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path+".new", []byte(edit(string(text))), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// overTLS returns the gateway for a client that trusts an authority, has these certificates, and opens a connection for each request.
func (g *gateway) overTLS(ca *testkit.Authority, certs ...tls.Certificate) *gateway {
	text, err := os.ReadFile(ca.CA())
	if err != nil {
		g.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &gateway{t: g.t, admin: g.admin, url: strings.Replace(g.url, "http://", "https://", 1), http: &http.Client{
		Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs, ServerName: "gateway", MinVersion: tls.VersionTLS12}},
	}}
}

// serial returns the number of the certificate that the gateway shows, and the protocol of its answer.
func (g *gateway) serial() (number int64, protocol string, err error) {
	resp, err := g.http.Get(g.url + "/v1/models")
	if err != nil {
		return 0, "", err
	}
	_ = resp.Body.Close()
	return resp.TLS.PeerCertificates[0].SerialNumber.Int64(), resp.Proto, nil
}

// TestClientsConnectWithTLS: with a certificate the gateway serves HTTPS alone, and HTTP/2. A new certificate and an authority of clients
// count for new connections, without a restart.
func TestClientsConnectWithTLS(t *testing.T) {
	t.Parallel()
	ca := testkit.NewAuthority(t)
	cert, key := ca.Issue("gateway")
	file := configFile(t, fmt.Sprintf("gateway: {tls: {certFile: %q, keyFile: %q}}\n", cert, key)+oneSim)
	plain := up(t, "--config", file)
	g := plain.overTLS(ca)

	if r := g.chat([]message{{"user", "hello"}}, 1); r.status != http.StatusOK {
		t.Errorf("status %d: %s", r.status, r.body)
	}
	first, protocol, err := g.serial()
	if err != nil || protocol != "HTTP/2.0" {
		t.Errorf("%s, %v", protocol, err)
	}
	if r, err := plain.send(t.Context(), http.MethodGet, "/v1/models", nil); err == nil {
		t.Errorf("a client without TLS gets %d", r.status)
	}
	if out := plain.up.out.String(); !strings.Contains(out, "gateway https://") {
		t.Errorf("the URL is not shown:\n%s", out)
	}

	ca.Issue("gateway")
	eventually(t, "the new certificate is shown", func() error {
		now, _, err := g.serial()
		if err == nil && now == first {
			err = errNotYet
		}
		return err
	})

	own, err := tls.LoadX509KeyPair(ca.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := tls.LoadX509KeyPair(testkit.NewAuthority(t).Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, file, func(text string) string {
		return strings.Replace(text, "tls: {", fmt.Sprintf("tls: {clientCAFile: %q, ", ca.CA()), 1)
	})
	eventually(t, "clients need a certificate", func() error {
		if _, _, err := g.serial(); err == nil {
			return errors.New("one without is served")
		}
		return nil
	})
	if _, _, err := g.overTLS(ca, stranger).serial(); err == nil {
		t.Error("a certificate of another authority is accepted")
	}
	if _, _, err := g.overTLS(ca, own).serial(); err != nil {
		t.Error(err)
	}
}

// serverTLS returns the settings of a server with a certificate for a name.
func serverTLS(t *testing.T, ca *testkit.Authority, name string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(ca.Issue(name))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}
