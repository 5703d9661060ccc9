package decisionlog

import (
	"context"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/decision"
)

const (
	// queueLength bounds the lines that wait to be written.
	queueLength = 4096
	// writeSize is the size from which a write takes no further line.
	writeSize = 64 << 10
)

// WriterConfig is read by NewWriter and not changed later.
type WriterConfig struct {
	// HashEvery is the number of a prompt's blocks that get one hash.
	HashEvery int
	// Append writes complete lines to the log. It must not keep them. If it returns an error the
	// lines are lost.
	Append func(lines []byte) error
	// Written receives the number of lines of each write that succeeded.
	Written func(lines int)
	// Lost receives the number of lines that were lost: with a nil error because the queue was full.
	// It must be quick.
	Lost func(lines int, err error)
}

// Writer appends lines to a log without delaying requests: lines wait in a queue of bounded length, and a
// line that does not fit is lost. All methods except Run are safe for concurrent use.
type Writer struct {
	cfg    WriterConfig
	queue  chan Line
	buffer []byte // belongs to Run
}

// NewWriter returns a writer that queues lines until it is run.
func NewWriter(cfg WriterConfig) *Writer {
	return &Writer{cfg: cfg, queue: make(chan Line, queueLength)}
}

// Decided queues a decision. It is made for route.Config.Decided and keeps neither argument.
func (w *Writer) Decided(d *decision.Decision, chain []blockhash.Sequence) {
	w.queueLine(Of(d, chain, w.cfg.HashEvery))
}

// Ended queues the end of a decision's request.
func (w *Writer) Ended(e *End) { w.queueLine(Line{End: e}) }

func (w *Writer) queueLine(line Line) {
	select {
	case w.queue <- line:
	default:
		w.cfg.Lost(1, nil)
	}
}

// Run writes lines until ctx ends, and then the queued ones. It must be called once.
func (w *Writer) Run(ctx context.Context) {
	for {
		select {
		case line := <-w.queue:
			w.write(line)
		case <-ctx.Done():
			for len(w.queue) > 0 {
				w.write(<-w.queue)
			}
			return
		}
	}
}

// write writes a line together with the lines queued after it, up to writeSize.
func (w *Writer) write(line Line) {
	w.buffer = w.buffer[:0]
	lines := 0
	for {
		b, err := line.Append(w.buffer)
		if err != nil {
			w.cfg.Lost(1, err)
		} else {
			w.buffer = b
			lines++
		}
		if len(w.queue) == 0 || len(w.buffer) > writeSize {
			break
		}
		line = <-w.queue
	}

	if err := w.cfg.Append(w.buffer); err != nil {
		w.cfg.Lost(lines, err)
		return
	}
	w.cfg.Written(lines)
}
