package session

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/host"
)

// withoutDescriptors is a listener that fails some times before each connection, as one does without free file descriptors.
type withoutDescriptors struct {
	*net.UnixListener
	left int
}

func (l *withoutDescriptors) AcceptUnix() (*net.UnixConn, error) {
	if l.left > 0 {
		l.left--
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: syscall.EMFILE}
	}
	l.left = 3
	return l.UnixListener.AcceptUnix()
}

// TestAcceptErrors: engines are served after failures to accept. Each episode has one line in the log.
func TestAcceptErrors(t *testing.T) {
	arena, err := host.New(host.Config{Slots: 4, SlotBytes: layout.Bytes(), NoHugePages: true})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	s := New()
	store, err := kvbm.New(kvbm.Config{Layout: layout, Memory: arena, Changed: s.Changed})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kv.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		err := s.Serve(ctx, &withoutDescriptors{listener, 3}, Config{
			Open: func(block.Layout) (Opened, error) { return Opened{store, arena}, nil },
			Log:  slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			t.Error(err)
		}
	})
	for i := range 2 {
		c, err := Dial(t.Context(), path, User{Name: "test", Layout: layout})
		if err != nil {
			t.Fatal(err)
		}
		put(t, c, []block.Key{{byte(i + 1)}})
		_ = c.Close()
	}
	cancel()
	run.Wait()
	// The third episode begins when the second engine is served, and may not have begun when the server ends.
	if n := strings.Count(log.String(), "cannot accept"); n != 2 && n != 3 {
		t.Errorf("the log has %d lines:\n%s", n, log.String())
	}
}

// TestClosedListener: a listener that is closed elsewhere ends the server with all its sessions.
func TestClosedListener(t *testing.T) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "kv.sock")})
	if err != nil {
		t.Fatal(err)
	}
	waits, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	accepted := make(chan struct{})
	ended := make(chan error)
	go func() { ended <- New().Serve(t.Context(), &watched{listener, accepted}, Config{}) }()
	<-accepted
	_ = listener.Close()
	if err := <-ended; err == nil {
		t.Error("the end of the listener is no error")
	}
}

// watched closes a channel after the first connection.
type watched struct {
	*net.UnixListener
	accepted chan struct{}
}

func (l *watched) AcceptUnix() (*net.UnixConn, error) {
	conn, err := l.UnixListener.AcceptUnix()
	if err == nil {
		close(l.accepted)
	}
	return conn, err
}
