package bus

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/internal/fleet"
)

// Login has the credentials that a server demands of its clients. Files are read again at every
// reconnection, so they can be replaced while the process runs.
type Login struct {
	// User and PasswordFile are a user name and a file with its password. A line break at its end does not
	// belong to the password.
	User, PasswordFile string
	// CredentialsFile has the JWT and the key of a user, as the tool nsc writes them. It replaces User.
	CredentialsFile string
	// CAFile has the certificates that may have signed the server's, in PEM; without it the system's. With any
	// file of a certificate the connection uses TLS.
	CAFile string
	// CertFile and KeyFile are the certificate and key of this process, in PEM, for a server that asks for them.
	CertFile, KeyFile string
}

// isSet reports whether the login names a user. Its role may not allow it to create buckets.
func (l *Login) isSet() bool { return l.User != "" || l.CredentialsFile != "" || l.CertFile != "" }

// maxPassword bounds a file with a password, in bytes.
const maxPassword = 4096

// options returns the options of the client for servers at urls. It reads every file once, so that a mistake is
// reported now. The error names the file, and no secret.
func (l *Login) options(urls string) ([]nats.Option, error) {
	user, err := userOf(urls)
	switch {
	case err != nil:
		return nil, err
	case l.User != "" && (user != nil || l.CredentialsFile != ""):
		return nil, errors.New("the user is named twice: use one of bus.user, bus.credentialsFile, and the user in bus.url")
	case (l.User == "") != (l.PasswordFile == ""):
		return nil, errors.New("bus.user and bus.passwordFile need each other")
	case (l.CertFile == "") != (l.KeyFile == ""):
		return nil, errors.New("bus.certFile and bus.keyFile need each other")
	}

	// The options read the files of certificates and credentials again for every connection.
	var opts []nats.Option
	if user != nil && fleet.ValidName(user.Username()) {
		opts = append(opts, nats.CustomInboxPrefix(inboxOf(user.Username())))
	}
	if l.User != "" {
		login, err := l.passwordLogin()
		if err != nil {
			return nil, err
		}
		opts = append(opts, login...)
	}
	if l.CredentialsFile != "" {
		if _, err := os.ReadFile(l.CredentialsFile); err != nil {
			return nil, fmt.Errorf("bus.credentialsFile: %w", err)
		}
		opts = append(opts, nats.UserCredentials(l.CredentialsFile))
	}
	if l.CAFile != "" {
		opts = append(opts, nats.RootCAs(l.CAFile))
	}
	if l.CertFile != "" {
		opts = append(opts, nats.ClientCert(l.CertFile, l.KeyFile))
	}
	return opts, nil
}

// passwordLogin returns the options for a user name and a file with a password. Replies to the user have subjects
// that begin with its name, so that permissions can keep users from reading the replies to others.
func (l *Login) passwordLogin() ([]nats.Option, error) {
	last, err := readPassword(l.PasswordFile)
	if err != nil {
		return nil, err
	}

	// The file may be away while it is replaced: the last password is tried then.
	var mu sync.Mutex
	user := nats.UserInfoHandler(func() (string, string) {
		mu.Lock()
		defer mu.Unlock()
		if password, err := readPassword(l.PasswordFile); err == nil {
			last = password
		}
		return l.User, last
	})
	return []nats.Option{user, nats.CustomInboxPrefix(inboxOf(l.User))}, nil
}

// inboxOf returns the beginning of all subjects of replies to a user.
func inboxOf(user string) string { return nats.InboxPrefix + user }

// readPassword returns the password in a file.
func readPassword(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("bus.passwordFile: %w", err)
	}

	data = bytes.TrimRight(data, "\r\n")
	if len(data) == 0 || len(data) > maxPassword {
		return "", fmt.Errorf("bus.passwordFile: %s must contain a password of 1 to %d bytes", path, maxPassword)
	}
	return string(data), nil
}

// userOf returns the first user in addresses; nil if there is none. The error contains no part of an address, which
// may be secret.
func userOf(urls string) (user *url.Userinfo, err error) {
	for text := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil {
			return nil, errors.New("bus.url cannot be read: it must be like nats://127.0.0.1:4222")
		}
		if user == nil {
			user = u.User
		}
	}
	return user, nil
}

// HasSecret reports whether an address contains a user, and so a password or a token. Every user of a machine can read
// those in a command line.
func HasSecret(urls string) bool {
	user, _ := userOf(urls)
	return user != nil
}

// Redacted returns the addresses of servers without user names, passwords and tokens, for logs and pages.
func Redacted(urls string) string {
	list := strings.Split(urls, ",")
	for i, text := range list {
		u, err := url.Parse(strings.TrimSpace(text))
		switch {
		case err != nil:
			list[i] = "(an address that cannot be read)"
		default:
			u.User = nil
			list[i] = u.String()
		}
	}
	return strings.Join(list, ",")
}
