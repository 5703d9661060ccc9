package decisionlog

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/decision"
)

// recorder collects what a writer does.
type recorder struct {
	mu            sync.Mutex
	text          string
	written, lost int
	err           error // what Append returns
}

func (r *recorder) writer() *Writer {
	return NewWriter(WriterConfig{
		HashEvery: 2,
		Append: func(lines []byte) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.err == nil {
				r.text += string(lines)
			}
			return r.err
		},
		Written: func(lines int) { r.mu.Lock(); defer r.mu.Unlock(); r.written += lines },
		Lost:    func(lines int, _ error) { r.mu.Lock(); defer r.mu.Unlock(); r.lost += lines },
	})
}

// flush writes everything that is queued.
func flush(w *Writer) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	w.Run(ctx)
}

// TestWriterAppendsQueuedLines: decisions and ends are written in their order, in one write.
func TestWriterAppendsQueuedLines(t *testing.T) {
	r := &recorder{}
	w := r.writer()
	w.Decided(&decision.Decision{ID: "x"}, []blockhash.Sequence{1, 2, 3})
	w.Ended(&End{ID: "x", Outcome: "as_picked"})
	flush(w)

	lines := strings.Split(r.text, "\n")
	if r.written != 2 || r.lost != 0 || len(lines) != 3 || lines[2] != "" {
		t.Fatalf("%d lines written, %d lost:\n%s", r.written, r.lost, r.text)
	}
	if !strings.HasPrefix(lines[0], `{"decision":{"id":"x"`) || !strings.HasPrefix(lines[1], `{"end":{"id":"x"`) {
		t.Errorf("the lines are\n%s", r.text)
	}
}

// TestWriterNeverBlocks: lines beyond the queue are lost and counted, and so are those of a failed write.
func TestWriterNeverBlocks(t *testing.T) {
	r := &recorder{err: errors.New("no space left on device")}
	w := r.writer()
	for range queueLength + 5 {
		w.Decided(&decision.Decision{ID: "x"}, nil)
	}
	if r.lost != 5 {
		t.Errorf("%d lines lost, want 5", r.lost)
	}

	flush(w)
	if r.written != 0 || r.lost != queueLength+5 {
		t.Errorf("%d lines written, %d lost", r.written, r.lost)
	}
}

// TestWriterRunsUntilItsContextEnds: lines are written while Run waits for more.
func TestWriterRunsUntilItsContextEnds(t *testing.T) {
	r := &recorder{}
	w := r.writer()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	for range 10 {
		w.Ended(&End{ID: "x"})
	}
	stop()
	running.Wait()

	if r.written != 10 {
		t.Errorf("%d lines written", r.written)
	}
}
