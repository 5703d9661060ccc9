package trace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
)

// wekaTrace is a file of the kv-cache-tester, or a row of SemiAnalysis' data sets: one program of a coding agent. AgentX plays these.
type wekaTrace struct {
	ID        string        `json:"id"`
	BlockSize int           `json:"block_size"`
	Scope     string        `json:"hash_id_scope"` // "global" if equal ids of other programs are equal blocks
	Requests  []wekaRequest `json:"requests"`
}

// wekaRequest is a request, or the marker of a sub-agent with its own requests. Times are in seconds.
type wekaRequest struct {
	T        float64       `json:"t"`
	Type     string        `json:"type"`
	Input    int           `json:"in"`
	Output   int           `json:"out"`
	HashIDs  []uint64      `json:"hash_ids"`
	APITime  float64       `json:"api_time"`   // until the end of the answer; 0 is unknown
	Think    *float64      `json:"think_time"` // between the answer before and the request
	Duration *float64      `json:"duration_ms"`
	Requests []wekaRequest `json:"requests"`
}

// wekaSubagent is the type of a marker.
const wekaSubagent = "subagent"

// The bounds of Weka traces, whose arrivals are all in memory.
const (
	maxWekaBlock    = 1 << 20
	maxWekaHashBits = 40 // of an id; the bits above number the programs
	maxWekaPrograms = 1 << (64 - maxWekaHashBits - 1)
	wekaLookBack    = 64 // requests among which a predecessor is looked for
)

// Weka reads programs of agents in the format of Weka's kv-cache-tester: one JSON object for each program, one after another. It returns
// the number of arrivals, too.
//
// A program's session is its id. A request waits for the last answer that had ended before it, and its pause is the recorded think time.
// A sub-agent begins after the last answer before its marker. The request after a sub-agent's end waits for it, so several sub-agents may
// run at a time. Times of a sub-agent's requests count from its marker, or from the beginning of the program if none is before the marker.
// All programs begin at 0.
func Weka(r io.Reader) (next Source, n int, err error) {
	var all wekaReader
	if err := all.read(r); err != nil {
		return nil, 0, err
	}
	next, n = all.source()
	return next, n, nil
}

// WekaFolder is [Weka] of all files of a folder tree that end in .json or .jsonl. Errors name the file.
func WekaFolder(folder fs.FS) (next Source, n int, err error) {
	var all wekaReader
	err = readFolder(folder, all.read, ".json", ".jsonl")
	if err == nil && len(all.arrivals) == 0 {
		err = errors.New("read trace: there is no request in any file that ends in .json or .jsonl")
	}
	if err != nil {
		return nil, 0, err
	}
	next, n = all.source()
	return next, n, nil
}

// wekaReader collects the arrivals of all programs.
type wekaReader struct {
	arrivals []Arrival
	programs int
}

// read reads all programs of a file.
func (w *wekaReader) read(r io.Reader) error {
	limited := &io.LimitedReader{R: r, N: maxSessionBytes + 1}
	d := json.NewDecoder(limited)
	for {
		var t wekaTrace
		err := d.Decode(&t)
		switch {
		case limited.N == 0:
			return fmt.Errorf("read trace: %w: a file may have %d MB", errTooLarge, maxSessionBytes>>20)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read trace: %w", err)
		}
		w.programs++
		if err := w.add(&t); err != nil {
			return fmt.Errorf("read trace: program %d, %q: %w", w.programs, quoted(t.ID), err)
		}
	}
}

// add adds the requests of a program.
func (w *wekaReader) add(t *wekaTrace) error {
	if t.BlockSize < 1 || t.BlockSize > maxWekaBlock {
		return fmt.Errorf("block_size %d: it must be from 1 to %d", t.BlockSize, maxWekaBlock)
	}
	if w.programs > maxWekaPrograms {
		return fmt.Errorf("%w: a trace may have %d programs", errTooLarge, maxWekaPrograms)
	}
	if len(t.Requests) == 0 {
		return errors.New("there are no requests: is it a trace of Weka's kv-cache-tester?")
	}

	p := wekaProgram{reader: w, trace: t, absolute: !hasRelativeTimes(t.Requests), session: fmt.Sprint(w.programs, " ", t.ID)}
	if t.Scope != "global" {
		p.scope = uint64(w.programs) << maxWekaHashBits
	}
	return p.addMain()
}

// hasRelativeTimes reports whether times of sub-agents' requests count from their markers: one of them is before its marker then.
func hasRelativeTimes(list []wekaRequest) bool {
	return slices.ContainsFunc(list, func(m wekaRequest) bool {
		return slices.ContainsFunc(m.Requests, func(q wekaRequest) bool { return q.T < m.T })
	})
}

// source returns the arrivals in order of time.
func (w *wekaReader) source() (Source, int) {
	slices.SortStableFunc(w.arrivals, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	return List(w.arrivals), len(w.arrivals)
}

// wekaProgram is a program that is being added.
type wekaProgram struct {
	reader   *wekaReader
	trace    *wekaTrace
	session  string
	scope    uint64 // of hash ids
	absolute bool   // times of sub-agents' requests count from the beginning
	steps    int    // so far
	open     []wekaAnswer
}

// wekaAnswer is the end of an answer, as recorded.
type wekaAnswer struct {
	step int
	end  float64
}

// addMain adds the requests of the main agent, and the sub-agents in between.
func (p *wekaProgram) addMain() error {
	var done []wekaAnswer
	for i := range p.trace.Requests {
		q := &p.trace.Requests[i]
		if q.Type == wekaSubagent {
			if err := p.addSubagent(q, done); err != nil {
				return err
			}
			continue
		}

		after := p.joined(q.T)
		a, err := p.step(q, q.T, lastBefore(done, q.T), after)
		if err != nil {
			return err
		}
		done = append(done, a)
	}
	return nil
}

// addSubagent adds the requests of a sub-agent, which the main agent has started after the answers in done.
func (p *wekaProgram) addSubagent(m *wekaRequest, done []wekaAnswer) error {
	var own []wekaAnswer
	for i := range m.Requests {
		q := &m.Requests[i]
		at := q.T
		if !p.absolute {
			at += m.T
		}
		last := lastBefore(own, at)
		if last == nil {
			last = lastBefore(done, m.T)
		}
		a, err := p.step(q, at, last, nil)
		if err != nil {
			return err
		}
		own = append(own, a)
	}

	if len(own) > 0 {
		last := own[len(own)-1]
		if m.Duration != nil && *m.Duration >= 0 {
			last.end = m.T + *m.Duration/1000
		}
		p.open = append(p.open, last)
	}
	return nil
}

// epsilon is the accuracy of times, in seconds.
const epsilon = 1e-6

// joined returns the last steps of the sub-agents that have ended by a time, and forgets them.
func (p *wekaProgram) joined(by float64) (steps []int) {
	p.open = slices.DeleteFunc(p.open, func(a wekaAnswer) bool {
		if a.end > by+epsilon {
			return false
		}
		steps = append(steps, a.step)
		return true
	})
	return steps
}

// step adds a request at a time, which waits for an answer, unless it is nil, and for these steps.
func (p *wekaProgram) step(q *wekaRequest, t float64, last *wekaAnswer, after []int) (wekaAnswer, error) {
	switch {
	case q.Input < 1 || q.Input > maxRowTokens || q.Output < 0 || q.Output > maxRowTokens:
		return wekaAnswer{}, fmt.Errorf("in %d and out %d: they must be from 1 and 0 to %d", q.Input, q.Output, maxRowTokens)
	case len(p.reader.arrivals) >= maxSessionRows:
		return wekaAnswer{}, fmt.Errorf("%w: a trace may have %d requests", errTooLarge, maxSessionRows)
	}
	at, err := timestamp(t, time.Second)
	if err != nil {
		return wekaAnswer{}, err
	}
	for i, id := range q.HashIDs {
		if id >= 1<<maxWekaHashBits {
			return wekaAnswer{}, fmt.Errorf("hash id %d: it must be below 2^%d", id, maxWekaHashBits)
		}
		q.HashIDs[i] |= p.scope
	}

	a := Arrival{
		At: at, Prompt: Blocks{IDs: q.HashIDs, Size: p.trace.BlockSize, Length: q.Input}, Output: max(1, q.Output),
		Session: p.session, Step: p.steps, After: after,
	}
	pause := t
	if last != nil {
		a.After = append(a.After, last.step)
		pause = t - last.end
		if q.Think != nil {
			pause = *q.Think
		}
	}
	a.Pause, err = timestamp(max(0, pause), time.Second)
	if err != nil {
		return wekaAnswer{}, err
	}
	p.steps++
	p.reader.arrivals = append(p.reader.arrivals, a)
	return wekaAnswer{a.Step, t + max(0, q.APITime)}, nil
}

// lastBefore returns the last answer that had ended by a time; nil for none.
func lastBefore(list []wekaAnswer, by float64) (last *wekaAnswer) {
	for i := max(0, len(list)-wekaLookBack); i < len(list); i++ {
		if a := &list[i]; a.end <= by+epsilon && (last == nil || a.end >= last.end) {
			last = a
		}
	}
	return last
}
