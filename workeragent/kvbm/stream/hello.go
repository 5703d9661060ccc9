package stream

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/stator-project/stator/workeragent/kvbm/block"
)

const (
	leastToken = 16
	nonceBytes = 16
	mostNode   = 255
)

// hello is the content of the first frame of each side. That of the server has no layout, because the client is not known yet.
type hello struct {
	Version int           `json:"version"`
	Node    string        `json:"node"`
	Nonce   []byte        `json:"nonce"`
	Layout  *block.Layout `json:"layout,omitempty"`
	// Calls is set by a server that answers calls. Sides of earlier releases ignore it, and do not set it.
	Calls bool `json:"calls,omitempty"`
}

func newHello(node string, layout *block.Layout, calls bool) ([]byte, error) {
	h := hello{Version: version, Node: node, Nonce: make([]byte, nonceBytes), Layout: layout, Calls: calls}
	if _, err := rand.Read(h.Nonce); err != nil {
		return nil, err
	}
	return json.Marshal(h)
}

// parseHello reads a hello. Its error wraps ErrVersion or ErrProtocol. That of a client must have a valid layout.
func parseHello(b []byte, ofClient bool) (h hello, err error) {
	if err := json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("%w: its hello: %w", ErrProtocol, err)
	}
	if h.Version != version {
		return h, fmt.Errorf("%w: %d there and %d here", ErrVersion, h.Version, version)
	}
	if len(h.Nonce) != nonceBytes || h.Node == "" || len(h.Node) > mostNode || ofClient != (h.Layout != nil) {
		return h, fmt.Errorf("%w: its hello lacks a nonce, a name or a layout", ErrProtocol)
	}
	if ofClient {
		if err := h.Layout.Validate(); err != nil {
			return h, fmt.Errorf("%w: its layout: %w", ErrProtocol, err)
		}
	}
	return h, nil
}

// prove returns the proof that a side has the token.
func prove(token, side string, client, server []byte) []byte {
	clientSum := sha256.Sum256(client)
	serverSum := sha256.Sum256(server)
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("stator kv stream 1 " + side + "\n"))
	mac.Write(clientSum[:])
	mac.Write(serverSum[:])
	return mac.Sum(nil)
}

// readContent reads a frame of a kind. A refusal becomes its error.
func readContent(r io.Reader, want kind, fromServer bool) ([]byte, error) {
	f, err := readFrame(r, fromServer, 0)
	if err != nil {
		return nil, err
	}
	if f.kind != want && f.kind != kindRefused {
		return nil, fmt.Errorf("%w: a frame of kind %d came, and not of %d", ErrProtocol, f.kind, want)
	}
	content := make([]byte, f.length)
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, err
	}
	if f.kind != kindRefused {
		return content, nil
	}

	reason := refusals[content[0]]
	if reason == nil {
		reason = ErrProtocol
	}
	return nil, fmt.Errorf("connection refused: %w (%q)", reason, content[1:])
}

func writeContent(w io.Writer, k kind, content []byte) error {
	_, err := w.Write(append(appendFrame(make([]byte, 0, frameBytes+len(content)), k, len(content)), content...))
	return err
}

// greetServer does the client's part of the handshake, and returns whether the server answers calls.
func greetServer(rw io.ReadWriter, token, node string, layout *block.Layout) (calls bool, err error) {
	mine, err := newHello(node, layout, false)
	if err != nil {
		return false, err
	}
	if err := writeContent(rw, kindHello, mine); err != nil {
		return false, err
	}
	theirs, err := readContent(rw, kindHello, true)
	if err != nil {
		return false, err
	}
	server, err := parseHello(theirs, false)
	if err != nil {
		return false, err
	}

	if err := writeContent(rw, kindProof, prove(token, "client", mine, theirs)); err != nil {
		return false, err
	}
	proof, err := readContent(rw, kindWelcome, true)
	if err != nil {
		return false, err
	}
	switch {
	case !hmac.Equal(proof, prove(token, "server", mine, theirs)):
		return false, ErrToken
	case server.Node == node:
		return false, ErrSelf
	}
	return server.Calls, nil
}

// greetClient does the server's part of the handshake. A client that has the token is given to admit, whose error refuses it. The
// refusal is sent where the error is one of those that have a code.
func greetClient(rw io.ReadWriter, token, node string, calls bool, admit func(client *hello) error) error {
	err := answerClient(rw, token, node, calls, admit)
	for code, refusal := range refusals {
		if errors.Is(err, refusal) {
			text := err.Error()
			_ = writeContent(rw, kindRefused, append([]byte{code}, text[:min(len(text), mostText)]...))
		}
	}
	return err
}

func answerClient(rw io.ReadWriter, token, node string, calls bool, admit func(client *hello) error) error {
	theirs, err := readContent(rw, kindHello, false)
	if err != nil {
		return err
	}
	client, err := parseHello(theirs, true)
	if err != nil {
		return err
	}
	mine, err := newHello(node, nil, calls)
	if err != nil {
		return err
	}
	if err := writeContent(rw, kindHello, mine); err != nil {
		return err
	}

	proof, err := readContent(rw, kindProof, false)
	if err != nil {
		return err
	}
	if !hmac.Equal(proof, prove(token, "client", theirs, mine)) {
		return ErrToken
	}
	if err := admit(&client); err != nil {
		return err
	}
	return writeContent(rw, kindWelcome, prove(token, "server", theirs, mine))
}

// checkIdentity refuses a token that is easy to guess, and a name or a layout that peers would refuse.
func checkIdentity(token, node string, layout *block.Layout) error {
	switch {
	case len(token) < leastToken:
		return fmt.Errorf("the token needs at least %d characters; `openssl rand -hex 32` makes one", leastToken)
	case node == "" || len(node) > mostNode:
		return fmt.Errorf("the node's name needs 1 to %d bytes", mostNode)
	}
	return layout.Validate()
}
