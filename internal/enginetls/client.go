package enginetls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/listen"
)

// Settings are paths of files in PEM, and a DNS name.
type Settings struct {
	// CA has the authorities of engines. Without it there is no TLS.
	CA string
	// Cert and Key are the certificate of this process and its key; empty for none.
	Cert, Key string
	// ServerName is the DNS name that the certificate of every engine must have.
	ServerName string
	// Except are the addresses of engines without TLS.
	Except fleet.Addresses
}

// Client makes connections to engines. A nil Client makes them without TLS.
type Client struct {
	serverName string
	except     fleet.Addresses
	current    func() *tls.Config
}

// New reads the files. It returns nil if the settings name no CA.
func New(s Settings, log *slog.Logger) (*Client, error) {
	if s.CA == "" {
		return nil, nil
	}
	files := []string{s.CA}
	if s.Cert != "" {
		files = append(files, s.Cert, s.Key)
	}
	current, err := listen.Follow(log, s.read, files...)
	if err != nil {
		return nil, err
	}
	return &Client{s.ServerName, s.Except, current}, nil
}

// read returns the settings of a connection that is made now.
func (s *Settings) read() (*tls.Config, error) {
	roots, err := listen.ReadCA(s.CA)
	if err != nil {
		return nil, fmt.Errorf("read engineTLS.caFile: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: s.ServerName}
	if s.Cert == "" {
		return cfg, nil
	}
	pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		return nil, fmt.Errorf("read engineTLS.certFile and engineTLS.keyFile: %w", err)
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, nil
}

// Encrypts reports whether connections to the engine at ip:port have TLS.
func (c *Client) Encrypts(address string) bool { return c != nil && !c.except.Has(address) }

// Dial returns a function that connects to an engine at ip:port, and verifies its certificate, in the given time. It is made for
// http.Transport.DialContext. URLs of requests begin with http:// all the same, because the connection already encrypts.
func (c *Client) Dial(within time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: within}
	if c == nil {
		return dialer.DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		raw, err := dialer.DialContext(ctx, network, address)
		// An address with a name has become one with an IP.
		if err != nil || !c.Encrypts(raw.RemoteAddr().String()) {
			return raw, err
		}

		secure := tls.Client(raw, c.current())
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, &net.OpError{Op: dial, Net: network, Addr: raw.RemoteAddr(), Err: c.explain(err)}
		}
		return &conn{secure, c}, nil
	}
}

// dial is the operation of errors before a connection is ready.
const dial = "dial"

// conn is a connection to an engine. In TLS 1.3 an engine refuses a certificate after the handshake, so the first Read fails.
type conn struct {
	*tls.Conn
	client *Client
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if isAlert(err) {
		err = &net.OpError{Op: dial, Net: "tcp", Addr: c.RemoteAddr(), Err: c.client.explain(err)}
	}
	return n, err
}

// isAlert reports whether an error is the other side's reason to end a connection.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// Error is the reason why there is no connection by TLS.
type Error struct {
	// What is wrong, and Remedy is what to change.
	What, Remedy string
	Err          error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %v", e.What, e.Remedy, e.Err) }

// Unwrap returns the error of package tls.
func (e *Error) Unwrap() error { return e.Err }

// explain returns an [Error] if it knows what to change.
func (c *Client) explain(err error) error {
	var (
		plain   tls.RecordHeaderError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &plain):
		return &Error{"the engine speaks no TLS", "start it with a certificate, or list its address in engineTLS.except", err}
	case errors.As(err, &unknown):
		return &Error{"no authority in engineTLS.caFile has signed the engine's certificate", "add its authority to the file", err}
	case errors.As(err, &name):
		return &Error{"the engine's certificate is not for " + c.serverName, "issue it for that name, or change engineTLS.serverName", err}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return &Error{"the engine's certificate is not valid now", "renew it", err}
	case isAlert(err):
		const remedy = "set engineTLS.certFile and engineTLS.keyFile to a certificate of an authority that the engine knows"
		return &Error{"the engine refuses this client", remedy, err}
	}
	return err
}

// IsServed reports whether the server at ip:port speaks TLS. It verifies no certificate. The time is bounded by ctx.
func IsServed(ctx context.Context, address string) bool {
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = connection.Close()
	}
	return err == nil || isAlert(err)
}
