package scenario

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/test/testkit"
)

// lockedParts are parts whose router and control plane listen on all addresses, where only Envoys with a certificate
// can connect.
type lockedParts struct {
	*parts
	ca         *testkit.Authority
	clientCert tls.Certificate
	secrets    string // folder of Envoy's secrets
}

// startLockedParts runs bus, agent, extproc and xds, and an Envoy with a certificate.
func startLockedParts(t *testing.T) *lockedParts {
	t.Helper()
	listen, busAt := freeAddress(t), freeAddress(t)
	p := &lockedParts{ca: testkit.NewAuthority(t), secrets: t.TempDir(), parts: &parts{
		gateway: &gateway{t: t, url: "http://" + listen}, extprocAt: freeAddress(t), xdsAt: freeAddress(t), extprocAdmin: freeAddress(t),
	}}
	p.gateway.admin = p.extprocAdmin
	p.file = configFile(t, fmt.Sprintf(`
gateway: {listen: "%s", decisionTimeout: 2s}
bus: {url: "nats://%s", leaseTTL: 2s}
models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 2}]}]
`, listen, busAt))

	p.startEnvoy()
	p.bus = start(t, "bus", "--listen-address", busAt)
	p.agent = start(t, "agent", "--config", p.file, "--admin-address", "127.0.0.1:0")
	p.extproc = p.startLocked("extproc", p.extprocAt, p.extprocAdmin)
	p.xds = p.startLocked("xds", p.xdsAt, "127.0.0.1:0", "--extproc-address", p.extprocAt, "--extproc-secrets", p.secrets)
	p.await()
	return p
}

// startEnvoy runs an Envoy whose certificates are in files.
func (p *lockedParts) startEnvoy() {
	cert, key := p.ca.Issue("envoy")
	var err error
	p.clientCert, err = tls.LoadX509KeyPair(cert, key)
	if err != nil {
		p.t.Fatal(err)
	}

	boot, err := exec.Command(binary, "envoy", "bootstrap", "--admin-address", "127.0.0.1:0", "--xds-address", p.xdsAt,
		"--secrets", p.secrets, "--ca", p.ca.CA(), "--cert", cert, "--key", key).Output()
	if err != nil {
		p.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(p.t.Output(), nil))
	p.envoy, err = envoy.Start(envoy.Config{Path: envoyPath(p.t), Bootstrap: boot, Dir: p.t.TempDir(), Log: log})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { p.envoy.Stop(context.Background()) })
}

// startLocked runs a part that listens on all addresses, with a certificate for its name.
func (p *lockedParts) startLocked(part, at, admin string, flags ...string) *command {
	p.t.Helper()
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, key := p.ca.Issue("stator-" + part)
	return start(p.t, append([]string{part, "--config", p.file, "--admin-address", admin, "--listen-address", ":" + port,
		"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", p.ca.CA()}, flags...)...)
}

// call sends a request on a new connection with TLS. It returns an error where the server refused the connection.
func (p *lockedParts) call(at, server string, certs ...tls.Certificate) error {
	roots := x509.NewCertPool()
	text, err := os.ReadFile(p.ca.CA())
	if err != nil {
		p.t.Fatal(err)
	}
	roots.AppendCertsFromPEM(text)
	return invoke(p.t, at, credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: server, Certificates: certs, MinVersion: tls.VersionTLS13,
	}))
}

// invoke sends a request with an unknown method. The answer of a server that serves us is that it is unknown.
func invoke(t *testing.T, at string, secured credentials.TransportCredentials) error {
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(secured))
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = conn.Invoke(ctx, "/no.such.Service/Method", nil, nil)
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return errors.Join(errors.New("refused"), err)
}

// TestOnlyEnvoysWithCertificatesConnect: beyond loopback, router and control plane serve Envoys with a certificate of the CA, and no other client.
func TestOnlyEnvoysWithCertificatesConnect(t *testing.T) {
	t.Parallel()
	p := startLockedParts(t)
	before := p.served("as_picked")
	const requests = 20
	for i := range requests {
		p.chat([]message{{"user", fmt.Sprintf("question %d", i)}}, 1)
	}
	eventually(t, "all requests are served as picked", func() error {
		if n := p.served("as_picked") - before; n < requests {
			return fmt.Errorf("%d of %d", n, requests)
		}
		return nil
	})
	p.assertNothingBooked()

	stranger, err := tls.LoadX509KeyPair(testkit.NewAuthority(t).Issue("envoy"))
	if err != nil {
		t.Fatal(err)
	}
	for server, at := range map[string]string{"stator-extproc": p.extprocAt, "stator-xds": p.xdsAt} {
		if err := p.call(at, server, p.clientCert); err != nil {
			t.Errorf("%s: a client with a certificate: %v", server, err)
		}
		if err := p.call(at, server); err == nil {
			t.Errorf("%s: a client without a certificate is served", server)
		}
		if err := p.call(at, server, stranger); err == nil {
			t.Errorf("%s: a client with a certificate of another authority is served", server)
		}
		if err := invoke(t, at, insecure.NewCredentials()); err == nil {
			t.Errorf("%s: a client without TLS is served", server)
		}
	}
}

// TestCertificatesChangeWhilePartsRun replaces the authority and all certificates. New connections use them, those of
// Envoy too.
func TestCertificatesChangeWhilePartsRun(t *testing.T) {
	t.Parallel()
	p := startLockedParts(t)
	p.chat([]message{{"user", "before"}}, 1)

	p.ca.Renew()
	cert, key := p.ca.Issue("envoy")
	renewed, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for server, at := range map[string]string{"stator-extproc": p.extprocAt, "stator-xds": p.xdsAt} {
		p.ca.Issue(server)
		eventually(t, server+" has its new certificate and trusts the new authority", func() error {
			return p.call(at, server, renewed)
		})
		if err := p.call(at, server, p.clientCert); err == nil {
			t.Errorf("%s: a client with a certificate of the old authority is served", server)
		}
	}

	// New processes trust the new authority alone, so Envoy needs its new certificate.
	p.extproc.stop()
	p.xds.stop()
	p.awaitControlPlane(0)
	p.extproc = p.startLocked("extproc", p.extprocAt, p.extprocAdmin)
	p.xds = p.startLocked("xds", p.xdsAt, "127.0.0.1:0", "--extproc-address", p.extprocAt, "--extproc-secrets", p.secrets)
	p.awaitControlPlane(1)
	p.await()
}

// awaitControlPlane waits until Envoy has so many streams to the control plane: none or one.
func (p *lockedParts) awaitControlPlane(want int) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("Envoy has %d control planes", want), func() error {
		n, err := p.envoy.Stat(p.t.Context(), "control_plane.connected_state")
		if err == nil && n != want {
			err = errNotYet
		}
		return err
	})
}
