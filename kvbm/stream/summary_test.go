package stream_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/kvbm/stream"
)

// TestSummary: a client gets a summary, then only that it has not changed, and then the next one. Blocks come meanwhile.
func TestSummary(t *testing.T) {
	m, keys := someBlocks(layout, 40)
	var version atomic.Uint64
	version.Store(1)
	_, address := serve(t, m, func(cfg *stream.ServerConfig) {
		cfg.Summary = func(has uint64) (uint64, []byte) {
			now := version.Load()
			if has == now {
				return now, nil
			}
			return now, bytes.Repeat([]byte{byte(now)}, stream.MostSummary)
		}
	}, nil)
	c := connect(t, address, nil)

	fetched := make(chan []stream.Result)
	dst := slots(len(keys))
	go func() { fetched <- c.Fetch(t.Context(), keys, dst) }()
	for _, step := range []struct{ now, has, content uint64 }{{1, 0, 1}, {1, 1, 0}, {2, 1, 2}, {2, 2, 0}, {2, 0, 2}} {
		version.Store(step.now)
		got, content, err := c.Summary(t.Context(), step.has)
		if err != nil || got != step.now {
			t.Fatalf("%+v: version %d, %v", step, got, err)
		}
		want := bytes.Repeat([]byte{byte(step.content)}, stream.MostSummary)
		if step.content == 0 && content != nil || step.content != 0 && !bytes.Equal(content, want) {
			t.Errorf("%+v: a summary of %d bytes", step, len(content))
		}
	}
	same(t, m, keys, dst, <-fetched)
}

// TestNoSummary: a server that has no summary answers so, and one that is too large ends the connection.
func TestNoSummary(t *testing.T) {
	m, _ := someBlocks(layout, 1)
	_, address := serve(t, m, nil, nil)
	if version, content, err := connect(t, address, nil).Summary(t.Context(), 7); version != 0 || content != nil || err != nil {
		t.Errorf("version %d, %d bytes, %v", version, len(content), err)
	}

	_, address = serve(t, m, func(cfg *stream.ServerConfig) {
		cfg.Summary = func(uint64) (uint64, []byte) { return 1, make([]byte, stream.MostSummary+1) }
	}, nil)
	if _, _, err := connect(t, address, nil).Summary(t.Context(), 0); err == nil {
		t.Error("a summary that is too large has arrived")
	}
}

// TestSummaryOfStuckPeer: the call ends at its deadline, and the next one gets its own answer on another connection.
func TestSummaryOfStuckPeer(t *testing.T) {
	m, _ := someBlocks(layout, 1)
	var calls atomic.Uint64
	release := make(chan struct{})
	_, address := serve(t, m, func(cfg *stream.ServerConfig) {
		cfg.Summary = func(uint64) (uint64, []byte) {
			n := calls.Add(1)
			if n == 1 {
				<-release
			}
			return n, []byte{byte(n)}
		}
	}, nil)
	c := connect(t, address, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := c.Summary(ctx, 0)
	if !errors.Is(err, stream.ErrStalled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call ended with %v", err)
	}
	close(release)
	version, content, err := c.Summary(t.Context(), 0)
	if err != nil || version != 2 || !bytes.Equal(content, []byte{2}) {
		t.Errorf("version %d, %v, %v", version, content, err)
	}
}

// TestConnectionToSelf: a node does not fetch from itself.
func TestConnectionToSelf(t *testing.T) {
	m, keys := someBlocks(layout, 1)
	_, address := serve(t, m, nil, nil)
	c := connect(t, address, func(cfg *stream.ClientConfig) { cfg.Node = "server" })
	if r := c.Fetch(t.Context(), keys, slots(1)); !errors.Is(r[0].Err, stream.ErrSelf) {
		t.Errorf("the result is %v", r[0].Err)
	}
}
