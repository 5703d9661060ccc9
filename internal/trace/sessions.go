package trace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// SessionConfig describes how the sessions of agents become arrivals.
type SessionConfig struct {
	// Encode appends the token ids of a text.
	Encode func(dst []uint32, text string) []uint32
	// Join makes the prompt of each row the whole conversation so far: the new part of each input, and
	// each answer, in turn. Without Join an input is a whole prompt, as in the published traces.
	Join bool
	// Concurrent moves the sessions in time, so that this many run at once: each starts when an earlier
	// one ends. 0 keeps the recorded times.
	Concurrent int
}

// sessionRow is a row of an agent's session.
type sessionRow struct {
	Timestamp float64 `json:"timestamp"` // microseconds
	Input     *string `json:"input"`
	Output    string  `json:"output"`
	Session   string  `json:"session_id"`
}

// Rows of sessions are out of order, so all of them are held in memory as text. These bound it.
const (
	maxSessionBytes = 512 << 20
	maxSessionRows  = 1 << 20
)

// sessionReader collects the rows of all files.
type sessionReader struct {
	steps []step
	bytes int
}

// step is one request of a session.
type step struct {
	at      time.Duration
	number  int           // in its session
	pause   time.Duration // since the step before
	session string
	input   string
	output  string
}

// Sessions reads the sessions of agents from all files of a folder tree that end in .jsonl: JSON lines
// of timestamp in microseconds, input and output as text, and session_id. It returns the number of
// arrivals, too. Errors name file and line.
func Sessions(folder fs.FS, cfg SessionConfig) (next Source, n int, err error) {
	var all sessionReader
	err = readFolder(folder, all.readRows, ".jsonl")
	if err == nil && len(all.steps) == 0 {
		err = errors.New("there is no row in any file that ends in .jsonl")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read sessions: %w", err)
	}
	next, n = all.source(cfg)
	return next, n, nil
}

// SessionFile is [Sessions] of a single file.
func SessionFile(r io.Reader, cfg SessionConfig) (next Source, n int, err error) {
	var all sessionReader
	if err := all.readRows(r); err != nil {
		return nil, 0, err
	}
	next, n = all.source(cfg)
	return next, n, nil
}

// readFolder reads the files of a folder tree that have one of these extensions. Errors of read name the file.
func readFolder(folder fs.FS, read func(io.Reader) error, extensions ...string) error {
	return fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains(extensions, path.Ext(name)) {
			return err
		}
		f, err := folder.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()

		if err := read(f); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

func (s *sessionReader) readRows(r io.Reader) error {
	l := newLines(r)
	for {
		line, err := l.next()
		if line == nil || err != nil {
			return err
		}

		var row sessionRow
		if err := json.Unmarshal(line, &row); err != nil {
			return l.fail(err)
		}
		at, err := timestamp(row.Timestamp, time.Microsecond)
		if err != nil {
			return l.fail(err)
		}
		if row.Input == nil || *row.Input == "" {
			return l.fail(errors.New("there is no input: it must be the text of a prompt"))
		}

		s.bytes += len(*row.Input) + len(row.Output)
		if s.bytes > maxSessionBytes || len(s.steps) >= maxSessionRows {
			return l.fail(fmt.Errorf("%w: sessions may have %d MB and %d rows", errTooLarge, maxSessionBytes>>20, maxSessionRows))
		}
		s.steps = append(s.steps, step{at: at, session: row.Session, input: *row.Input, output: row.Output})
	}
}

// source sorts the steps and returns them as arrivals. Texts are encoded when their arrival is read.
func (s *sessionReader) source(cfg SessionConfig) (Source, int) {
	byTime := func(x, y step) int { return cmp.Compare(x.at, y.at) }
	slices.SortStableFunc(s.steps, byTime)
	numberSteps(s.steps)
	if cfg.Join {
		joinTurns(s.steps)
	}
	if cfg.Concurrent > 0 {
		runConcurrently(s.steps, cfg.Concurrent)
		slices.SortStableFunc(s.steps, byTime)
	}

	steps := s.steps
	return func() (Arrival, bool, error) {
		if len(steps) == 0 {
			return Arrival{}, false, nil
		}
		next := steps[0]
		steps = steps[1:]
		a := Arrival{
			At: next.at, Session: next.session, Prompt: text{next.input, cfg.Encode},
			Output: max(1, len(cfg.Encode(nil, next.output))), Step: next.number, Pause: next.pause,
		}
		if a.Step > 0 {
			a.After = []int{a.Step - 1}
		}
		return a, true, nil
	}, len(s.steps)
}

// numberSteps numbers the steps of each session. A pause is the time between two steps, because the end of an answer is not recorded.
func numberSteps(steps []step) {
	last := map[string]*step{}
	for i := range steps {
		s := &steps[i]
		if before := last[s.session]; before != nil {
			s.number, s.pause = before.number+1, s.at-before.at
		}
		last[s.session] = s
	}
}

// text is a prompt that is not encoded yet.
type text struct {
	text   string
	encode func(dst []uint32, text string) []uint32
}

// Append appends the text's tokens.
func (t text) Append(dst []uint32) []uint32 { return t.encode(dst, t.text) }

// dialogue is a session that joinTurns puts together.
type dialogue struct {
	text   strings.Builder
	inputs []string // of its steps so far
}

// joinTurns makes each input the whole conversation so far.
func joinTurns(steps []step) {
	dialogues := map[string]*dialogue{}
	for i := range steps {
		s := &steps[i]
		d := dialogues[s.session]
		if d == nil {
			d = &dialogue{}
			dialogues[s.session] = d
		}

		d.text.WriteString(d.newPart(s.input))
		d.inputs = append(d.inputs, s.input)
		s.input = d.text.String()
		d.text.WriteString("\n" + s.output + "\n")
	}
}

// newPart returns an input without the longest earlier input that it begins with.
func (d *dialogue) newPart(input string) string {
	fresh := input
	for _, earlier := range d.inputs {
		if rest, ok := strings.CutPrefix(input, earlier); ok && len(rest) < len(fresh) {
			fresh = rest
		}
	}
	return fresh
}

const (
	// startGap separates the starts of sessions that would start at the same moment.
	startGap = 100 * time.Millisecond
	// sessionGap is the time between the last request of a session and the start of the next one.
	sessionGap = time.Second
)

// span is the time of a session: as recorded, and its new start.
type span struct{ from, to, start time.Duration }

// runConcurrently moves whole sessions in time, so that n of them run at once. Each session follows the
// one that ends first.
func runConcurrently(steps []step, n int) {
	spans := map[string]*span{}
	var inOrder []*span // by start, because steps are in order of time
	for _, s := range steps {
		sp := spans[s.session]
		if sp == nil {
			sp = &span{from: s.at}
			spans[s.session] = sp
			inOrder = append(inOrder, sp)
		}
		sp.to = s.at
	}

	free := make([]time.Duration, min(n, len(inOrder))) // when each of n lanes is free
	for i, sp := range inOrder {
		lane := 0
		for k := range free {
			if free[k] < free[lane] {
				lane = k
			}
		}
		sp.start = max(free[lane], time.Duration(i)*startGap)
		free[lane] = min(sp.start+sp.to-sp.from+sessionGap, maxTraceTime)
	}

	for i := range steps {
		sp := spans[steps[i].session]
		steps[i].at += sp.start - sp.from
	}
}
