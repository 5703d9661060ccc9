package listen

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
)

// NoClientCA is the value of --tls-client-ca with which clients need no certificate.
const NoClientCA = "none"

// unixPrefix begins the addresses of Unix sockets.
const unixPrefix = "unix://"

// Doors are the flags that protect the listeners of a process. Loopback and Unix sockets need no protection.
type Doors struct {
	// CertFile and KeyFile are the certificate and the key of the listeners.
	CertFile, KeyFile string
	// SelfSigned makes a certificate instead, when a listener opens. Clients cannot verify it.
	SelfSigned bool
	// ClientCAFile is the CA of Envoys' certificates. With it, Envoys need one. With NoClientCA they need none.
	ClientCAFile string
	// TokenFile has the token of the admin port.
	TokenFile string
	// Insecure allows listeners beyond loopback without TLS.
	Insecure bool
}

// AddFlags adds the flags of every process. listeners names the purpose of the certificate, in the help of the
// flags.
func (d *Doors) AddFlags(f *flag.FlagSet, listeners string) {
	f.StringVar(&d.CertFile, "tls-cert", "", "`file` with the certificate of "+listeners+" in PEM; it is read again when it changes")
	f.StringVar(&d.KeyFile, "tls-key", "", "`file` with the key of --tls-cert")
	f.StringVar(&d.TokenFile, "admin-token-file", "", "`file` with the token that the admin port asks for; needed beyond loopback")
	f.BoolVar(&d.Insecure, "insecure", false, "allow listeners beyond loopback without TLS, where the network is trusted or encrypts")
}

// AddClientFlags adds the flags of processes that serve Envoys.
func (d *Doors) AddClientFlags(f *flag.FlagSet) {
	f.StringVar(&d.ClientCAFile, "tls-client-ca", "",
		"`file` with the CA of Envoys' certificates in PEM; needed beyond loopback. \"none\" asks Envoys for no certificate, and allows "+
			"TLS 1.2: for gateways that have none to show, on a network where Envoys alone reach this port")
	f.BoolVar(&d.SelfSigned, "tls-self-signed", false,
		"make the certificate of --listen-address at the start: traffic is encrypted, but Envoys cannot verify this process")
}

// Check reports flags that do not fit together.
func (d *Doors) Check() error {
	switch {
	case (d.CertFile == "") != (d.KeyFile == ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case d.SelfSigned && d.CertFile != "":
		return errors.New("--tls-self-signed and --tls-cert exclude each other: the certificate is either made or read")
	case d.ClientCAFile != "" && d.CertFile == "" && !d.SelfSigned:
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key, or --tls-self-signed")
	}
	return nil
}

// ForEnvoys listens on ip:port or unix:///path. flag names the flag that has the address, for errors. TCP has TLS
// if there is a certificate. Beyond loopback, certificates of both sides are needed: a client of these ports is
// trusted with prompts and decisions. Certificates of clients are not needed with NoClientCA.
func (d *Doors) ForEnvoys(address, flag string, log *slog.Logger) (net.Listener, error) {
	ln, err := On(address, flag)
	if err != nil {
		return nil, err
	}

	encrypted := d.CertFile != "" || d.SelfSigned
	if !d.Insecure && isRemote(ln) && (!encrypted || d.ClientCAFile == "") {
		_ = ln.Close()
		return nil, fmt.Errorf("%s %s is beyond loopback, where everyone could connect: pass --tls-cert, --tls-key and --tls-client-ca, "+
			"listen on unix:///path, or pass --insecure on a network that you trust", flag, address)
	}
	if !encrypted || isSocket(ln) {
		return ln, nil
	}
	if isRemote(ln) && d.ClientCAFile == NoClientCA {
		log.Warn("Envoys are asked for no certificate: everyone who reaches this port can read decisions and end requests; "+
			"let only gateways reach it", flag, address)
	}

	const protocol = "h2" // gRPC needs HTTP/2
	if d.SelfSigned {
		return d.selfSign(ln, protocol, log)
	}
	return d.encrypt(ln, log, d.ClientCAFile, protocol)
}

// ForOperators listens as ForEnvoys does, for the admin port. Beyond loopback it needs a token, and there it has TLS
// if there is a certificate. Only the user of this process can connect to its Unix socket.
func (d *Doors) ForOperators(address, flag string, log *slog.Logger) (net.Listener, error) {
	ln, err := On(address, flag)
	if err != nil {
		return nil, err
	}
	if isSocket(ln) {
		return ln, os.Chmod(strings.TrimPrefix(address, unixPrefix), 0o600)
	}
	if !isRemote(ln) {
		return ln, nil
	}

	switch {
	case d.TokenFile == "":
		err = errors.New("pass --admin-token-file")
	case d.CertFile == "" && !d.Insecure:
		err = errors.New("pass --tls-cert and --tls-key, or --insecure on a network that you trust")
	}
	if err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("%s %s is beyond loopback, where everyone could connect: %w", flag, address, err)
	}

	if d.CertFile == "" {
		return ln, nil
	}
	return d.encrypt(ln, log, "", "http/1.1")
}

// AdminScheme returns the scheme of the address of a listener that ForOperators has opened: unix://, https://, or nothing.
func (d *Doors) AdminScheme(ln net.Listener) string {
	switch {
	case isSocket(ln):
		return unixPrefix
	case isRemote(ln) && d.CertFile != "":
		return "https://"
	}
	return ""
}

// Token returns the token of the admin port, or nil if no file is given.
func (d *Doors) Token(log *slog.Logger) (*Token, error) {
	if d.TokenFile == "" {
		return nil, nil
	}
	return OpenToken(d.TokenFile, log)
}

// isRemote reports whether other machines may reach a listener.
func isRemote(ln net.Listener) bool {
	address, isTCP := ln.Addr().(*net.TCPAddr)
	return isTCP && !address.IP.IsLoopback()
}

func isSocket(ln net.Listener) bool {
	_, isUnix := ln.Addr().(*net.UnixAddr)
	return isUnix
}
