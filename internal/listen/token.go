package listen

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// Bounds of a token in bytes.
const (
	minToken = 16
	maxToken = 4096
)

// Token is a bearer token in a file. It is safe for concurrent use.
type Token struct {
	hash *reloaded[[sha256.Size]byte]
}

// OpenToken reads the token of a file, which is read again when it changes. A file that other users can read gets a
// warning.
func OpenToken(path string, log *slog.Logger) (*Token, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		log.Warn("other users can read the token: chmod 600 its file", "file", path)
	}

	hash, err := newReloaded(log, func() (sum [sha256.Size]byte, err error) {
		text, err := ReadToken(path)
		return sha256.Sum256([]byte(text)), err
	}, path)
	if err != nil {
		return nil, err
	}
	return &Token{hash}, nil
}

// Is reports whether text is the token. The time that it takes does not depend on the token.
func (t *Token) Is(text string) bool {
	want, given := t.hash.current(time.Now()), sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(want[:], given[:]) == 1
}

// Key returns a key that follows from the token, of now. It must not be changed.
func (t *Token) Key() []byte {
	key := t.hash.current(time.Now())
	return key[:]
}

// ReadToken returns the token in a file, without the white space around it.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}

	text := bytes.TrimSpace(data)
	if err := checkToken(text); err != nil {
		return "", fmt.Errorf("read token of %s: %w", path, err)
	}
	return string(text), nil
}

// checkToken refuses a token that is too easy to guess, and one that a header cannot hold.
func checkToken(text []byte) error {
	switch {
	case len(text) < minToken || len(text) > maxToken:
		return fmt.Errorf("it needs %d to %d characters; `openssl rand -hex 32` makes one", minToken, maxToken)
	case bytes.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("it must be one word of ASCII characters")
	}
	return nil
}
