package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route"
)

// decisionLog appends what the router decides, and how its requests end, to a file. Requests do
// not wait for the disk: lines go through a queue of bounded length, and what finds it full is
// counted and lost.
type decisionLog struct {
	log           *slog.Logger
	path          string
	every         int   // blocks a hash
	most          int64 // bytes of a file
	queue         chan decisionlog.Line
	written, lost prometheus.Counter

	// The rest belongs to run.
	file   *os.File
	size   int64
	buffer []byte
	opened bool      // the file was opened, and its version line is not written yet
	cut    bool      // the file may end in the middle of a line
	said   time.Time // when trouble was last logged
}

const decisionQueue = 4096

// openDecisionLog opens the configured file; nil where there is none.
func openDecisionLog(cfg *config.Config, log *slog.Logger, reg prometheus.Registerer) (*decisionLog, error) {
	if cfg.Decisions.Log == "" {
		return nil, nil
	}
	l := &decisionLog{
		log: log, path: cfg.Decisions.Log, every: cfg.Decisions.HashEvery, most: cfg.Decisions.LogBytes,
		queue: make(chan decisionlog.Line, decisionQueue),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "stator_decision_log_lines_total", Help: "Lines written to the decision log: decisions, and ends of their requests.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "stator_decision_log_lost_total", Help: "Lines that the decision log lost, because they came faster than the disk took them, or it took none.",
		}),
	}
	reg.MustRegister(l.written, l.lost)
	return l, l.open()
}

func (l *decisionLog) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open decision log (decisions.log, --decision-log): %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open decision log: %w", err), f.Close())
	}
	l.file, l.size = f, info.Size()
	l.opened, l.cut = true, endsInLine(f, info.Size())
	return nil
}

// endsInLine reports whether a file does not end with a newline: a full disk or a killed process leaves
// such a file.
func endsInLine(f *os.File, size int64) bool {
	if size == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err := f.ReadAt(last, size-1)
	return err != nil || last[0] != '\n'
}

// decided is route.Config.Decided.
func (l *decisionLog) decided(d *route.Decision, chain []blockhash.Sequence) {
	l.add(decisionlog.Of(d, chain, l.every))
}

// ended is told of each request in Envoy's access log.
func (l *decisionLog) ended(e *messages.Entry, outcome string, now time.Time) {
	if e.Decision == "" {
		return
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	l.add(decisionlog.Line{End: &decisionlog.End{
		ID: e.Decision, At: now, Outcome: outcome, FirstByte: ms(e.FirstByte), LastByte: ms(e.LastByte), ResponseBytes: e.ResponseBytes,
	}})
}

func (l *decisionLog) add(line decisionlog.Line) {
	select {
	case l.queue <- line:
	default:
		l.lost.Inc()
	}
}

// run writes until ctx ends, and then what is queued.
func (l *decisionLog) run(ctx context.Context) {
	for {
		select {
		case line := <-l.queue:
			l.take(line)
		case <-ctx.Done():
			for len(l.queue) > 0 {
				l.take(<-l.queue)
			}
			_ = l.file.Close() // every line has been written
			return
		}
	}
}

// take writes a line with those that are queued behind it, as far as they fit in one write.
func (l *decisionLog) take(line decisionlog.Line) {
	if !l.begin() {
		return
	}
	lines := 0
	for {
		if b, err := line.Append(l.buffer); err != nil {
			l.trouble(1, err)
		} else {
			l.buffer, lines = b, lines+1
		}
		if len(l.queue) == 0 || len(l.buffer) > 64<<10 {
			break
		}
		line = <-l.queue
	}
	if err := l.write(); err != nil {
		l.trouble(lines, err)
		return
	}
	l.written.Add(float64(lines))
}

// trouble counts lines that are lost, and says so once a minute: a disk that takes nothing costs
// lines, never requests.
func (l *decisionLog) trouble(lines int, err error) {
	l.lost.Add(float64(lines))
	if now := time.Now(); now.Sub(l.said) >= time.Minute {
		l.said = now
		l.log.Error("decision log: lines are lost", "path", l.path, "err", err)
	}
}

// begin starts the buffer of a write: it turns a full file, ends a line that was cut, and adds the
// version line to a file that was just opened.
func (l *decisionLog) begin() (ok bool) {
	l.buffer = l.buffer[:0]
	if l.size >= l.most {
		if err := l.turn(); err != nil {
			l.trouble(1, err)
			return false
		}
	}
	if l.cut {
		l.buffer = append(l.buffer, '\n')
	}
	if l.opened {
		header := decisionlog.Header()
		l.buffer, _ = header.Append(l.buffer) // a header has no error
	}
	return true
}

func (l *decisionLog) write() error {
	n, err := l.file.Write(l.buffer)
	l.size += int64(n)
	l.cut = err != nil
	l.opened = l.opened && err != nil
	return err
}

// turn begins a new file; the one before stays, under its name and ".1".
func (l *decisionLog) turn() error {
	if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put full decision log away: %w", err)
	}
	full := l.file
	if err := l.open(); err != nil {
		return err
	}
	return full.Close()
}

func addDecisionLogFlag(f *flagSet, path *string) {
	f.StringVar(path, "decision-log", "", "`file` to which decisions are appended as JSON lines, instead of decisions.log of the file")
}
