package sim

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

// AgentConfig says how sessions of text become arrivals.
type AgentConfig struct {
	// Encode appends the token ids of a text.
	Encode func(dst []uint32, text string) []uint32
	// Join makes of each row the whole conversation so far: what is new in each input, and each
	// answer, one after the other. Without it an input is a whole prompt, as in the published traces.
	Join bool
	// AtOnce lays the sessions side by side, so many at a time: each begins when one before it has
	// ended as recorded. 0 leaves them when they were.
	AtOnce int
}

// agentRow is a row of an agent's session.
type agentRow struct {
	Timestamp float64 `json:"timestamp"` // microseconds
	Input     *string `json:"input"`
	Output    string  `json:"output"`
	Session   string  `json:"session_id"`
}

// Of a folder of sessions all is in memory, as text: rows are out of order.
const (
	maxAgentBytes = 512 << 20
	maxAgentRows  = 1 << 20
)

// agentRows are those of all sessions.
type agentRows struct {
	rows  []agentStep
	bytes int
}

type agentStep struct {
	at      time.Duration
	session string
	input   string
	output  string
}

// Agent reads the sessions of agents in all files of a folder tree that end in .jsonl: JSON lines
// of timestamp in microseconds, input and output as text, and session_id. It returns how many
// rows there are, too. Errors name file and line.
func Agent(folder fs.FS, cfg AgentConfig) (next Source, n int, err error) {
	var all agentRows
	err = fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".jsonl" {
			return err
		}
		f, err := folder.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := all.read(f); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err == nil && len(all.rows) == 0 {
		err = errors.New("there is no row in any file that ends in .jsonl")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read sessions: %w", err)
	}
	next, n = all.source(cfg)
	return next, n, nil
}

// AgentFile is [Agent] of a single file.
func AgentFile(r io.Reader, cfg AgentConfig) (next Source, n int, err error) {
	var all agentRows
	if err := all.read(r); err != nil {
		return nil, 0, err
	}
	next, n = all.source(cfg)
	return next, n, nil
}

func (a *agentRows) read(r io.Reader) error {
	l := newLines(r)
	for {
		line, err := l.next()
		if line == nil || err != nil {
			return err
		}
		var row agentRow
		if err := json.Unmarshal(line, &row); err != nil {
			return l.fail(err)
		}
		at, err := since(row.Timestamp, time.Microsecond)
		if err != nil {
			return l.fail(err)
		}
		if row.Input == nil || *row.Input == "" {
			return l.fail(errors.New("there is no input: it must be the text of a prompt"))
		}
		a.bytes += len(*row.Input) + len(row.Output)
		if a.bytes > maxAgentBytes || len(a.rows) >= maxAgentRows {
			return l.fail(fmt.Errorf("%w: sessions may have %d MB and %d rows", errTraceTooLarge, maxAgentBytes>>20, maxAgentRows))
		}
		a.rows = append(a.rows, agentStep{at, row.Session, *row.Input, row.Output})
	}
}

// source orders the rows and gives them out. Text becomes tokens when it is asked for.
func (a *agentRows) source(cfg AgentConfig) (Source, int) {
	byTime := func(x, y agentStep) int { return cmp.Compare(x.at, y.at) }
	slices.SortStableFunc(a.rows, byTime)
	if cfg.Join {
		join(a.rows)
	}
	if cfg.AtOnce > 0 {
		sideBySide(a.rows, cfg.AtOnce)
		slices.SortStableFunc(a.rows, byTime)
	}
	rows := a.rows
	return func() (Arrival, bool, error) {
		if len(rows) == 0 {
			return Arrival{}, false, nil
		}
		s := rows[0]
		rows = rows[1:]
		return Arrival{
			At: s.at, Session: s.session, Prompt: text{s.input, cfg.Encode}, Output: max(1, len(cfg.Encode(nil, s.output))),
		}, true, nil
	}, len(a.rows)
}

// text is a prompt that is not yet tokens.
type text struct {
	text   string
	encode func(dst []uint32, text string) []uint32
}

// Append appends the text's tokens.
func (t text) Append(dst []uint32) []uint32 { return t.encode(dst, t.text) }

// join makes each input the conversation so far. An input that begins with an earlier one of its
// session brings only what follows.
func join(rows []agentStep) {
	type talk struct {
		said strings.Builder
		seen []string
	}
	talks := map[string]*talk{}
	for i := range rows {
		t := talks[rows[i].session]
		if t == nil {
			t = &talk{}
			talks[rows[i].session] = t
		}
		fresh := rows[i].input
		for _, s := range t.seen {
			if rest, ok := strings.CutPrefix(rows[i].input, s); ok && len(rest) < len(fresh) {
				fresh = rest
			}
		}
		t.seen = append(t.seen, rows[i].input)
		t.said.WriteString(fresh)
		rows[i].input = t.said.String()
		t.said.WriteString("\n" + rows[i].output + "\n")
	}
}

// sideBySide moves whole sessions in time, so that n go on at once: each takes over from the one
// that ends first.
func sideBySide(rows []agentStep, n int) {
	type span struct{ from, to, at time.Duration }
	spans := map[string]*span{}
	var order []*span // by begin: rows are in order of time
	for _, r := range rows {
		s := spans[r.session]
		if s == nil {
			s = &span{from: r.at}
			spans[r.session] = s
			order = append(order, s)
		}
		s.to = r.at
	}
	lanes := make([]time.Duration, min(n, len(order))) // when each is free
	for i, s := range order {
		lane := 0
		for k := range lanes {
			if lanes[k] < lanes[lane] {
				lane = k
			}
		}
		// Those that begin together do so a tenth of a second apart.
		s.at = max(lanes[lane], time.Duration(i)*100*time.Millisecond)
		lanes[lane] = min(s.at+s.to-s.from+time.Second, maxTraceTime)
	}
	for i := range rows {
		s := spans[rows[i].session]
		rows[i].at += s.at - s.from
	}
}
