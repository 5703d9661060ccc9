package peers

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/test/testkit"
)

// The kinds of frames that middle changes, and the bytes of their headers.
const (
	kindBlock, kindSummary     = 6, 9
	headerOfFrame, headerBlock = 8, 24
)

// middle stands between a node and its peer. It has no token. It relays their hellos, and changes what follows: a summary claims every
// block, and each answer about a block becomes false bytes with the right CRC32C.
type middle struct {
	certificate tls.Certificate
	to          string
	connections atomic.Int64
	forged      atomic.Int64
}

// startMiddle returns the address of a man in the middle before an address, which ends with the test.
func startMiddle(t *testing.T, to string) (m *middle, address string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	m = &middle{certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, to: to}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			m.connections.Add(1)
			run.Go(func() { m.relay(ctx, in) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		run.Wait()
	})
	return m, ln.Addr().String()
}

// relay relays a connection. It ends TLS of both sides, as a relay does that can read the bytes that it passes on.
func (m *middle) relay(ctx context.Context, raw net.Conn) {
	defer raw.Close()
	rawOut, err := net.Dial("tcp", m.to)
	if err != nil {
		return
	}
	defer rawOut.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = raw.Close()
		_ = rawOut.Close()
	})
	defer stop()

	in := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{m.certificate}})
	out := tls.Client(rawOut, &tls.Config{InsecureSkipVerify: true})
	var up sync.WaitGroup
	defer up.Wait()
	up.Go(func() {
		_, _ = io.Copy(out, in)
		_ = rawOut.Close()
	})
	defer raw.Close()
	r := bufio.NewReader(out)
	for {
		var header [headerOfFrame]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return
		}
		content := make([]byte, binary.LittleEndian.Uint32(header[4:]))
		if _, err := io.ReadFull(r, content); err != nil {
			return
		}
		content = m.forge(header[0], content)
		binary.LittleEndian.PutUint32(header[4:], uint32(len(content)))
		if _, err := in.Write(append(header[:], content...)); err != nil {
			return
		}
	}
}

// forge returns the content of a frame as middle passes it on.
func (m *middle) forge(kind byte, content []byte) []byte {
	switch kind {
	case kindSummary:
		m.forged.Add(1)
		all := make([]byte, filterHeader, filterHeader+1500)
		binary.LittleEndian.PutUint32(all, 1000)
		return append(content[:12:12], append(all, bytes.Repeat([]byte{0xff}, 1500)...)...)
	case kindBlock:
		m.forged.Add(1)
		forged := bytes.Repeat([]byte{0xbd}, layout.Bytes())
		out := append([]byte(nil), content[:16]...)
		out = binary.LittleEndian.AppendUint32(out, block.Sum(forged))
		out = binary.LittleEndian.AppendUint32(out, uint32(len(forged)))
		return append(out, forged...)
	}
	return content
}

// TestManInTheMiddle: a relay without the token passes the hellos of two nodes on. The node reads no block through it, and the log names
// the peer.
func TestManInTheMiddle(t *testing.T) {
	keys := someKeys(0, 40)
	a, memory := newStore(t, 64)
	put(t, a, memory, keys[:20]) // it lacks the others
	address, _ := serve(t, a, "a")
	m, between := startMiddle(t, address)

	var log bytes.Buffer
	var mu sync.Mutex
	p := follow(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)) }, between)
	testkit.Eventually(t, "the log names the peer", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), "peer="+between) && strings.Contains(log.String(), "reads the connection")
	})
	dst := slots(len(keys))
	for i, err := range p.Load(t.Context(), keys, dst) {
		if err == nil {
			t.Errorf("block %d came: right bytes %v", i, bytes.Equal(dst[i], content(keys[i])))
		}
	}
	if n := p.Match(keys); n != 0 || m.forged.Load() != 0 || m.connections.Load() == 0 {
		t.Errorf("the peer has %d blocks; %d frames of %d connections were changed", n, m.forged.Load(), m.connections.Load())
	}
}
