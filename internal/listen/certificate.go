package listen

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Certificate is a certificate and its key in files, which are read again when they change. It is safe for concurrent
// use.
type Certificate struct {
	pair *reloaded[*tls.Certificate]
}

// OpenCertificate reads the files of a certificate and its key, in PEM.
func OpenCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	pair, err := newReloaded(log, func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	}, cert, key)
	if err != nil {
		return nil, err
	}
	return &Certificate{pair}, nil
}

// Get returns the certificate. It is made for tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.pair.current(time.Now()), nil
}

// ReadCA returns the certificates of a file in PEM.
func ReadCA(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", path)
	}
	return pool, nil
}
