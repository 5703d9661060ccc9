package stream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
)

const (
	leastToken = 16
	mostNode   = 255
)

// hello is the content of the first frame of each side. The server's hello has no layout, because the client has it already.
type hello struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	// Proof is the proof of the token, for this connection alone.
	Proof  []byte        `json:"proof"`
	Layout *block.Layout `json:"layout,omitempty"`
	// Calls is set by a server that answers calls.
	Calls bool `json:"calls,omitempty"`
}

// parseHello reads a hello. Its error wraps ErrVersion or ErrProtocol. A client's hello must have a valid layout.
func parseHello(b []byte, ofClient bool) (h hello, err error) {
	if err := json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("%w: its hello: %w", ErrProtocol, err)
	}
	if h.Version != version {
		return h, fmt.Errorf("%w: %d there and %d here", ErrVersion, h.Version, version)
	}
	if h.Node == "" || len(h.Node) > mostNode || ofClient != (h.Layout != nil) {
		return h, fmt.Errorf("%w: its hello lacks a name or a layout", ErrProtocol)
	}
	if ofClient {
		if err := h.Layout.Validate(); err != nil {
			return h, fmt.Errorf("%w: its layout: %w", ErrProtocol, err)
		}
	}
	return h, nil
}

// newCertificate returns a certificate that is signed by itself. TLS needs one; peers check the proofs of the token instead.
func newCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// clientTLS is the configuration of clients. No name and no authority of the certificate is checked, because the server's proof of the
// token is bound to the connection.
var clientTLS = &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}

// channelBinding is the label of the keying material that RFC 9266 exports from a connection, of bindingBytes.
const (
	channelBinding = "EXPORTER-Channel-Binding"
	bindingBytes   = 32
)

// prover proves the token for one connection.
type prover struct {
	token   string
	binding []byte
}

// newProver does the handshake of TLS. Only the two ends of a connection can export its binding, so a proof that is relayed to another
// connection is wrong there.
func newProver(conn *tls.Conn, token string) (p prover, err error) {
	if err := conn.Handshake(); err != nil {
		return p, err
	}
	state := conn.ConnectionState()
	binding, err := state.ExportKeyingMaterial(channelBinding, nil, bindingBytes)
	return prover{token: token, binding: binding}, err
}

// proof returns the proof that a side has the token.
func (p prover) proof(side string) []byte {
	mac := hmac.New(sha256.New, []byte(p.token))
	mac.Write([]byte("stator kv stream 2 " + side + "\n"))
	mac.Write(p.binding)
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
func greetServer(conn *tls.Conn, token, node string, layout *block.Layout) (calls bool, err error) {
	prover, err := newProver(conn, token)
	if err != nil {
		return false, tlsFailed(err)
	}
	mine, err := json.Marshal(hello{Version: version, Node: node, Proof: prover.proof("client"), Layout: layout})
	if err != nil {
		return false, err
	}
	if err := writeContent(conn, kindHello, mine); err != nil {
		return false, err
	}

	theirs, err := readContent(conn, kindHello, true)
	if err != nil {
		return false, err
	}
	server, err := parseHello(theirs, false)
	switch {
	case err != nil:
		return false, err
	case !hmac.Equal(server.Proof, prover.proof("server")):
		return false, ErrToken
	case server.Node == node:
		return false, ErrSelf
	}
	return server.Calls, nil
}

// tlsFailed returns the error of a handshake of TLS, with the likely cause if the peer has ended it or does not speak TLS.
func tlsFailed(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, net.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrHandshake, err)
}

// greetClient does the server's part of the handshake. A client that has the token is given to admit, whose error refuses it. The refusal
// is sent if the error has a code.
func greetClient(conn *tls.Conn, token, node string, calls bool, admit func(client *hello) error) error {
	prover, err := newProver(conn, token)
	if err != nil {
		return err
	}
	err = answerClient(conn, prover, node, calls, admit)
	for code, refusal := range refusals {
		if errors.Is(err, refusal) {
			text := err.Error()
			_ = writeContent(conn, kindRefused, append([]byte{code}, text[:min(len(text), mostText)]...))
		}
	}
	return err
}

func answerClient(conn *tls.Conn, prover prover, node string, calls bool, admit func(client *hello) error) error {
	theirs, err := readContent(conn, kindHello, false)
	if err != nil {
		return err
	}
	client, err := parseHello(theirs, true)
	if err != nil {
		return err
	}
	if !hmac.Equal(client.Proof, prover.proof("client")) {
		return ErrToken
	}
	if err := admit(&client); err != nil {
		return err
	}

	mine, err := json.Marshal(hello{Version: version, Node: node, Proof: prover.proof("server"), Calls: calls})
	if err != nil {
		return err
	}
	return writeContent(conn, kindHello, mine)
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
