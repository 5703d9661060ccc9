package extproc

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/metric"
)

// decisionLog is the decision log with its file. The file is closed after Run, which writes the last lines.
type decisionLog struct {
	*decisionlog.Writer
	*decisionFile
}

// newDecisionLog opens the configured decision log; nil if none is configured. A log that cannot be opened is
// an error, so that a wrong path is found at the start; later errors are counted and logged, and requests are
// served without a log.
func newDecisionLog(cfg *config.Decisions, log *slog.Logger, reg prometheus.Registerer) (*decisionLog, error) {
	if cfg.Log == "" {
		return nil, nil
	}
	file, err := openDecisionFile(cfg.Log, cfg.LogBytes)
	if err != nil {
		return nil, err
	}

	part := metric.For(reg, "decision_log")
	written := part.Counter("lines_total", "Lines written to the decision log: decisions, and ends of their requests.")
	lost := part.Counter("lost_total", "Lines lost because they came faster than the disk could write, or because a write failed.")
	errors := &rareErrors{log: log, path: cfg.Log}

	return &decisionLog{decisionlog.NewWriter(decisionlog.WriterConfig{
		HashEvery: cfg.HashEvery,
		Append:    file.append,
		Written:   func(lines int) { written.Add(float64(lines)) },
		Lost: func(lines int, err error) {
			lost.Add(float64(lines))
			errors.logSometimes(err)
		},
	}), file}, nil
}

// rareErrors logs errors of the decision log, at most once a minute: a full disk would otherwise fill the
// log with them.
type rareErrors struct {
	log  *slog.Logger
	path string

	mu   sync.Mutex
	last time.Time // guarded by mu
}

const logErrorsEvery = time.Minute

// logSometimes logs err, unless it is nil or another was logged less than a minute ago.
func (r *rareErrors) logSometimes(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	if now := time.Now(); now.Sub(r.last) >= logErrorsEvery {
		r.last = now
		r.log.Error("decision log: lines are lost", "path", r.path, "err", err)
	}
}

// endOf returns the end of the request of an access log entry. The entry must have a decision: its id
// joins the two lines of the log.
func endOf(e *messages.Entry, outcome string, now time.Time) *decisionlog.End {
	return &decisionlog.End{
		ID: e.Decision, At: now, Outcome: outcome, Served: e.Served, FirstByte: milliseconds(e.FirstByte),
		FirstToken: milliseconds(e.FirstToken), LastByte: milliseconds(e.LastByte), Status: int(e.Status), ResponseBytes: e.ResponseBytes,
	}
}

// milliseconds returns d with three decimals.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
