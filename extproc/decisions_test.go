package extproc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/test/testkit"
)

// testLog is a decision log in a folder of the test's.
type testLog struct {
	*decisionLog
	metrics *prometheus.Registry
	log     testkit.Log
}

func newTestLog(t *testing.T, limit int64) *testLog {
	t.Helper()
	l := &testLog{metrics: prometheus.NewRegistry()}
	cfg := &config.Decisions{Log: filepath.Join(t.TempDir(), "decisions.jsonl"), LogBytes: limit, HashEvery: 2}
	var err error
	if l.decisionLog, err = newDecisionLog(cfg, l.log.Logger(), l.metrics); err != nil {
		t.Fatal(err)
	}
	return l
}

// written writes everything that is queued.
func (l *testLog) writeAll() {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	l.Run(ctx)
}

// counter returns one of the log's counters.
func (l *testLog) counter(name string) float64 {
	families, err := l.metrics.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}

// TestFullDecisionLogIsReplaced: lines are whole, a full file is renamed, and there are never more than two
// files.
func TestFullDecisionLogIsReplaced(t *testing.T) {
	l := newTestLog(t, 2000)
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() { l.Run(ctx) })
	for i := range 40 {
		l.Decided(&decision.Decision{ID: "x", Model: "m", Placement: decision.Placement{Worker: "w"}}, []blockhash.Sequence{1, 2, 3})
		for l.counter("stator_decision_log_lines_total") < float64(i) { // line by line, or one write has all
			time.Sleep(time.Millisecond)
		}
	}
	stop()
	writer.Wait()
	l.close()

	if got := l.counter("stator_decision_log_lines_total"); got != 40 {
		t.Errorf("%v lines written", got)
	}
	for _, path := range []string{l.path, l.path + ".1"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(b), "\n")
		for i, line := range lines[:len(lines)-1] {
			if i == 0 && line == `{"version":1,"format":"stator-decisions"}`+"\n" {
				continue
			}
			if !strings.HasPrefix(line, `{"decision":{"id":"x"`) || !strings.HasSuffix(line, `"hash_every":2,"hashes":["0000000000000002","0000000000000003"]}`+"\n") {
				t.Errorf("%s: %q", path, line)
			}
		}
		if len(b) > 3000 || lines[len(lines)-1] != "" {
			t.Errorf("%s has %d bytes", path, len(b))
		}
	}
	if files, _ := filepath.Glob(l.path + "*"); len(files) != 2 {
		t.Errorf("files %v", files)
	}
}

// TestDecisionLogNeverBlocks: a decision that finds the queue full is lost and counted, and so are lines
// that cannot be written.
func TestDecisionLogNeverBlocks(t *testing.T) {
	l := newTestLog(t, 1<<30)
	const queued = 4096
	for range queued + 5 {
		l.Decided(&decision.Decision{ID: "x"}, nil)
	}
	if got := l.counter("stator_decision_log_lost_total"); got != 5 {
		t.Errorf("%v lost, want 5", got)
	}

	l.close()
	l.writeAll()
	if got := l.counter("stator_decision_log_lost_total"); got != queued+5 || strings.Count(l.log.String(), "lines are lost") != 1 {
		t.Errorf("%v lost on a closed file; log:\n%s", got, l.log.String())
	}
}

// TestDecisionLogMustBeWritable: the error names the settings that chose the file.
func TestDecisionLogMustBeWritable(t *testing.T) {
	cfg := &config.Decisions{Log: filepath.Join(t.TempDir(), "no", "such", "folder"), LogBytes: 1 << 20, HashEvery: 1}
	_, err := newDecisionLog(cfg, nil, prometheus.NewRegistry())
	if err == nil || !strings.Contains(err.Error(), "--decision-log") {
		t.Errorf("%v does not name the setting", err)
	}
}

// TestDecisionLogContinuesCutFile opens a file that ends in the middle of a line: the cut line stays
// alone, and everything after it can be read.
func TestDecisionLogContinuesCutFile(t *testing.T) {
	l := newTestLog(t, 1<<30)
	if err := os.WriteFile(l.path, []byte(`{"version":1,"format":"stator-decisions"}`+"\n"+`{"end":{"id":"a","outc`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	l.Decided(&decision.Decision{ID: "x"}, nil)
	l.writeAll()

	f, err := os.Open(l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r := decisionlog.NewReader(f)
	line, err := r.Next()
	if err != nil || line.Decision == nil || line.Decision.ID != "x" || r.Skipped() != 1 {
		t.Errorf("%+v, %v, %d lines skipped", line, err, r.Skipped())
	}
}

// fullDisk is a file on a disk that has room for some bytes.
type fullDisk struct {
	io.WriteCloser
	room int
}

func (d *fullDisk) Write(b []byte) (int, error) {
	if len(b) <= d.room {
		d.room -= len(b)
		return d.WriteCloser.Write(b)
	}
	n, err := d.WriteCloser.Write(b[:d.room])
	d.room -= n
	return n, cmp.Or(err, error(syscall.ENOSPC))
}

// TestDecisionLogSurvivesAFullDisk fills the disk at every byte of a line, and then makes room. All lines that
// were written whole can be read, and no other.
func TestDecisionLogSurvivesAFullDisk(t *testing.T) {
	for room := range 300 {
		l := newTestLog(t, 1<<30)
		disk := &fullDisk{l.file, room}
		l.file = disk
		for i := range 6 {
			l.Ended(&decisionlog.End{ID: fmt.Sprint("lost ", i), Outcome: "as_picked"})
			l.writeAll()
		}
		disk.room = 1 << 20
		l.Ended(&decisionlog.End{ID: "kept", Outcome: "as_picked"})
		l.writeAll()

		data, err := os.ReadFile(l.path)
		if err != nil {
			t.Fatal(err)
		}
		r, read, last := decisionlog.NewReader(bytes.NewReader(data)), 0, ""
		for {
			line, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("room for %d bytes: %v in\n%s", room, err, data)
			}
			read, last = read+1, line.End.ID
		}
		if written := int(l.counter("stator_decision_log_lines_total")); read < written || last != "kept" {
			t.Errorf("room for %d bytes: %d lines were written and %d are read, the last is %q:\n%s", room, written, read, last, data)
		}
		l.close()
	}
}

// TestEndsAreLogged: the end of a request with a decision is logged, others are not.
func TestEndsAreLogged(t *testing.T) {
	l := newTestLog(t, 1<<30)
	r := &Router{records: records{decisionLog: l.decisionLog, demand: newDemand()}, state: &state{fleet: fleet.New(fleet.Hooks{})}}
	silent := &Router{state: r.state, records: records{demand: newDemand()}}
	now := time.Unix(1_000_000, 0).UTC()
	r.requestEnded(&messages.Entry{Decision: "x", FirstByte: 1500 * time.Microsecond, FirstToken: 1700 * time.Microsecond, Status: 200, ResponseBytes: 7}, "as_picked", nil, now)
	r.requestEnded(&messages.Entry{}, "unpicked", nil, now)
	silent.requestEnded(&messages.Entry{Decision: "x"}, "as_picked", nil, now)
	l.writeAll()

	b, err := os.ReadFile(l.path)
	want := `{"end":{"id":"x","at":"1970-01-12T13:46:40Z","outcome":"as_picked","first_byte_ms":1.5,"last_byte_ms":0,"first_token_ms":1.7,"status":200,"response_bytes":7}}` + "\n"
	if err != nil || strings.Count(string(b), "\n") != 2 || !strings.HasSuffix(string(b), want) {
		t.Errorf("%s, %v", b, err)
	}
	if problems, err := testutil.GatherAndLint(l.metrics); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
