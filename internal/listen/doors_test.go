package listen_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/test/testkit"
)

var quiet = slog.New(slog.DiscardHandler)

// TestListenersBeyondLoopback: an address that other machines reach needs the flags that protect it, and the error names
// them. Loopback and sockets need none.
func TestListenersBeyondLoopback(t *testing.T) {
	cert, key := testkit.NewAuthority(t).Issue("server")
	socket := "unix://" + filepath.Join(t.TempDir(), "a.sock")
	const envoys, admin = "pass --tls-cert, --tls-key and --tls-client-ca, listen on unix:///path, or pass --insecure", "pass --admin-token-file"

	for _, c := range []struct {
		address             string
		doors               listen.Doors
		forEnvoys, forAdmin string // of the error; empty means that it listens
	}{
		{"127.0.0.1:0", listen.Doors{}, "", ""},
		{"localhost:0", listen.Doors{}, "", ""},
		{"127.0.0.2:0", listen.Doors{}, "", ""},
		{socket, listen.Doors{}, "", ""},
		{":0", listen.Doors{}, envoys, admin},
		{"0.0.0.0:0", listen.Doors{}, envoys, admin},
		{"[::]:0", listen.Doors{}, envoys, admin},
		{":0", listen.Doors{Insecure: true}, "", admin},
		{":0", listen.Doors{TokenFile: key}, envoys, "pass --tls-cert and --tls-key, or --insecure"},
		{":0", listen.Doors{TokenFile: key, Insecure: true}, "", ""},
		{":0", listen.Doors{CertFile: cert, KeyFile: key}, envoys, admin},
		{":0", listen.Doors{CertFile: cert, KeyFile: key, TokenFile: key}, envoys, ""},
		{":0", listen.Doors{CertFile: cert, KeyFile: key, ClientCAFile: cert}, "", admin},
		{":0", listen.Doors{CertFile: cert, KeyFile: key, ClientCAFile: key}, "has no certificate in PEM", admin},
		{":0", listen.Doors{CertFile: cert, KeyFile: key, ClientCAFile: listen.NoClientCA}, "", admin},
		{":0", listen.Doors{SelfSigned: true}, envoys, admin},
		{":0", listen.Doors{SelfSigned: true, ClientCAFile: listen.NoClientCA}, "", admin},
		{":0", listen.Doors{SelfSigned: true, ClientCAFile: key}, "has no certificate in PEM", admin},
		{":0", listen.Doors{CertFile: key, KeyFile: key, TokenFile: key, Insecure: true}, "read --tls-cert and --tls-key", "read --tls-cert"},
	} {
		for want, open := range map[*string]func(string, string, *slog.Logger) (net.Listener, error){
			&c.forEnvoys: c.doors.ForEnvoys, &c.forAdmin: c.doors.ForOperators,
		} {
			ln, err := open(c.address, "--x", quiet)
			if err == nil {
				_ = ln.Close()
			}
			if (err == nil) != (*want == "") || err != nil && !strings.Contains(err.Error(), *want) {
				t.Errorf("%s %+v: %v, want %q", c.address, c.doors, err, *want)
			}
		}
	}
}

// TestFlagsOfDoorsNeedEachOther checks the combinations that protect nothing.
func TestFlagsOfDoorsNeedEachOther(t *testing.T) {
	for want, d := range map[string]listen.Doors{
		"":                                       {CertFile: "a", KeyFile: "b", ClientCAFile: "c"},
		"--tls-cert and --tls-key need":          {CertFile: "a"},
		"--tls-cert and --tls-key need each":     {KeyFile: "a"},
		"--tls-client-ca needs --tls-cert and -": {ClientCAFile: "c"},
		"--tls-self-signed and --tls-cert excl":  {SelfSigned: true, CertFile: "a", KeyFile: "b"},
	} {
		if err := d.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
}

// TestAdminSocketIsPrivate: other users cannot connect to an admin port that is a socket.
func TestAdminSocketIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := (&listen.Doors{}).ForOperators("unix://"+path, "--x", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// tlsServer answers every client with its own certificate's serial number.
type tlsServer struct {
	ca   *testkit.Authority
	ln   net.Listener
	log  testkit.Log
	done chan struct{}
}

// serveTLS runs a server for Envoys until the test ends.
func serveTLS(t *testing.T) *tlsServer {
	s := &tlsServer{ca: testkit.NewAuthority(t), done: make(chan struct{})}
	doors := listen.Doors{ClientCAFile: s.ca.CA()}
	doors.CertFile, doors.KeyFile = s.ca.Issue("server")
	ln, err := doors.ForEnvoys("127.0.0.1:0", "--x", slog.New(slog.NewTextHandler(&s.log, nil)))
	if err != nil {
		t.Fatal(err)
	}

	s.ln = ln
	go func() {
		defer close(s.done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprint(c, "hello")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-s.done
	})
	return s
}

// serial connects, with the certificate of a client or without one, and returns the number of the server's certificate.
func (s *tlsServer) serial(t *testing.T, cfg *tls.Config) (int64, error) {
	t.Helper()

	roots := x509.NewCertPool()
	text, err := os.ReadFile(s.ca.CA())
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(text)
	cfg.RootCAs, cfg.ServerName, cfg.NextProtos = roots, "server", []string{"h2"}
	c, err := tls.Dial("tcp", s.ln.Addr().String(), cfg)
	if err != nil {
		return 0, err
	}

	defer func() { _ = c.Close() }()
	// With TLS 1.3 a server refuses a client after the handshake of the client.
	if answer, err := io.ReadAll(c); string(answer) != "hello" {
		return 0, errors.Join(fmt.Errorf("the server sent %q", answer), err)
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

func (s *tlsServer) client(t *testing.T) *tls.Config {
	t.Helper()

	pair, err := tls.LoadX509KeyPair(s.ca.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

// TestStrangersAreRefused: a listener with a CA of clients refuses those without a certificate, with that of another CA,
// and old versions of TLS.
func TestStrangersAreRefused(t *testing.T) {
	s := serveTLS(t)
	if _, err := s.serial(t, s.client(t)); err != nil {
		t.Error(err)
	}

	stranger, err := tls.LoadX509KeyPair(testkit.NewAuthority(t).Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	old := s.client(t)
	old.MaxVersion = tls.VersionTLS12
	for name, cfg := range map[string]*tls.Config{
		"no certificate": {}, "another CA": {Certificates: []tls.Certificate{stranger}}, "TLS 1.2": old,
	} {
		if _, err := s.serial(t, cfg); err == nil {
			t.Errorf("%s: served", name)
		}
	}
}

// TestCertificatesAreReadAgain: new connections get the certificate that is in the file. A file that cannot be used leaves
// the last certificate in force, with one warning.
func TestCertificatesAreReadAgain(t *testing.T) {
	s := serveTLS(t)
	client := s.client(t)
	first, err := s.serial(t, client)
	if err != nil {
		t.Fatal(err)
	}

	cert, _ := s.ca.Issue("server")
	var second int64
	testkit.Eventually(t, "the new certificate is used", func() bool {
		second, err = s.serial(t, client)
		return err == nil && second != first
	})

	if err := os.WriteFile(cert, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a warning", func() bool {
		last, err := s.serial(t, client)
		if err != nil || last != second {
			t.Fatalf("after a broken file: certificate %d, want %d, %v", last, second, err)
		}
		return s.log.Contains("the last ones stay in force")
	})
	if _, err := s.serial(t, client); err != nil || strings.Count(s.log.String(), "level=WARN") != 1 {
		t.Errorf("%v, log:\n%s", err, s.log.String())
	}
}

// TestEnvoysWithoutCertificates: a listener that asks for no certificate serves clients of TLS 1.2, at which an Envoy stops by default,
// with a certificate that was made at the start or that is in a file.
func TestEnvoysWithoutCertificates(t *testing.T) {
	cert, key := testkit.NewAuthority(t).Issue("server")
	for name, doors := range map[string]listen.Doors{
		"self-signed": {SelfSigned: true, ClientCAFile: listen.NoClientCA},
		"from a file": {CertFile: cert, KeyFile: key, ClientCAFile: listen.NoClientCA},
	} {
		var log testkit.Log
		ln, err := doors.ForEnvoys(":0", "--x", log.Logger())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		served := make(chan error, 1)
		go func() {
			c, err := ln.Accept()
			if err == nil {
				err = c.(*tls.Conn).Handshake()
				_ = c.Close()
			}
			served <- err
		}()

		c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ln.Addr().(*net.TCPAddr).Port), &tls.Config{
			InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		})
		if err != nil || c.ConnectionState().NegotiatedProtocol != "h2" {
			t.Fatalf("%s: %v", name, err)
		}
		if err := <-served; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = c.Close()
		_ = ln.Close()
		if !log.Contains("asked for no certificate") || log.Contains("self-signed") != doors.SelfSigned {
			t.Errorf("%s: the log does not say how open the port is:\n%s", name, log.String())
		}
	}
}
