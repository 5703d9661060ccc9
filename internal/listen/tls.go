package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"time"
)

// readTLS returns the settings of a listener, whose files are read again when they change.
func (d *Doors) readTLS(log *slog.Logger, clientCA string, protocols ...string) (*reloaded[*tls.Config], error) {
	files := []string{d.CertFile, d.KeyFile}
	if verifies(clientCA) {
		files = append(files, clientCA)
	}
	return newReloaded(log, func() (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(d.CertFile, d.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read --tls-cert and --tls-key: %w", err)
		}
		return newTLS(pair, clientCA, protocols...)
	}, files...)
}

// encrypt returns a listener with TLS on ln. It closes ln when the files cannot be used.
func (d *Doors) encrypt(ln net.Listener, log *slog.Logger, clientCA, protocol string) (net.Listener, error) {
	cfg, err := d.ForServer(log, clientCA, protocol)
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	return tls.NewListener(ln, cfg), nil
}

// ForServer returns the TLS settings of a server that speaks one protocol of ALPN. With a clientCA, clients need a certificate of it. The
// files are read again when they change.
func (d *Doors) ForServer(log *slog.Logger, clientCA, protocol string) (*tls.Config, error) {
	loaded, err := d.readTLS(log, clientCA, protocol)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, // newTLS has the version that the listener really needs
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return loaded.current(time.Now()), nil
		},
	}, nil
}

// selfSign returns a listener with TLS on ln, whose certificate is made now. It closes ln on an error.
func (d *Doors) selfSign(ln net.Listener, protocol string, log *slog.Logger) (net.Listener, error) {
	pair, err := newCertificate()
	if err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("make a certificate for --tls-self-signed: %w", err)
	}
	cfg, err := newTLS(pair, d.ClientCAFile, protocol)
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	log.Warn("the certificate is self-signed: traffic is encrypted, but Envoys cannot verify this process", "address", ln.Addr().String())
	return tls.NewListener(ln, cfg), nil
}

// ForPeers returns the TLS settings between processes of one kind that listen on a host for each other; nil for none. Beyond loopback both
// sides need a certificate, unless the port of Envoys needs none either: who reaches these ports can end requests.
func (d *Doors) ForPeers(host string, log *slog.Logger) (*tls.Config, error) {
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.IsLoopback():
		return nil, nil
	case d.CertFile != "" && verifies(d.ClientCAFile):
	case d.Insecure, d.ClientCAFile == NoClientCA:
		log.Warn("peers speak to each other without TLS: let only peers reach this port", "address", host)
		return nil, nil
	default:
		return nil, errors.New("the address for peers is beyond loopback, where everyone could connect: pass --tls-cert, --tls-key and " +
			"--tls-client-ca, or --insecure on a network that you trust")
	}

	loaded, err := d.readTLS(log, d.ClientCAFile)
	if err != nil {
		return nil, err
	}
	// Each process is a client of the others, too, so one certificate is for both sides. A client keeps the CA that it has at its start.
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: loaded.current(time.Now()).ClientCAs,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return loaded.current(time.Now()), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &loaded.current(time.Now()).Certificates[0], nil
		},
	}, nil
}

// verifies reports whether clients need a certificate of a CA.
func verifies(clientCA string) bool { return clientCA != "" && clientCA != NoClientCA }

// newTLS returns the settings of a listener. The least version is TLS 1.3, and 1.2 with NoClientCA: an Envoy stops at 1.2 unless
// its configuration says otherwise, and who writes the configuration of such Envoys writes no certificates either.
func newTLS(pair tls.Certificate, clientCA string, protocols ...string) (*tls.Config, error) {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: protocols,
		// A resumed session would outlive a change of the CA. Connections are few and long.
		SessionTicketsDisabled: true,
	}
	if clientCA == NoClientCA {
		cfg.MinVersion = tls.VersionTLS12
	}
	if !verifies(clientCA) {
		return cfg, nil
	}

	pool, err := ReadCA(clientCA)
	if err != nil {
		return nil, fmt.Errorf("read --tls-client-ca: %w", err)
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	cfg.ClientCAs = pool
	return cfg, nil
}

// selfSignedFor is the lifetime of a certificate that is made at the start. Its end protects nothing, because clients cannot verify it, but
// some refuse a certificate whose time has passed.
const selfSignedFor = 10 * 365 * 24 * time.Hour

// newCertificate makes a self-signed certificate with a key of its own.
func newCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}

	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "stator"}, DNSNames: []string{"stator"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedFor), // an hour, because clocks differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, nil
}
