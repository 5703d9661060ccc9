package sim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
)

// decisionRow is what a replay needs of a line of a decision log.
type decisionRow struct {
	Decision *struct {
		ID                      string
		At                      time.Time
		Wait                    *struct{ Since time.Time }
		Err                     *struct{ Status int }
		Model, Session          string
		Stream                  bool
		PromptTokens, MaxTokens int
		BlockSize, Blocks       int
	} `json:"decision"`
	HashEvery int                `json:"hashEvery"`
	Hashes    []decisionlog.Hash `json:"hashes"`
	End       *decisionlog.End   `json:"end"`
}

// decided is an arrival that a log tells of.
type decided struct {
	at        time.Time
	prompt    stretches
	session   string
	model     string
	stream    bool
	maxTokens int
	output    int // 0 while nothing is known
}

// Of a decision log all is in memory: how an answer ended stands lines below its decision.
const maxDecisions = 1 << 20

// Decisions reads the log of a router's decisions (package decisionlog) as what was asked of it:
// prompts that were equal up to a hash that was kept are so here. It returns how many there are, too.
// Requests that could not be served by any fleet, or whose prompt was not read, are left out.
//
// A log does not say how many tokens an answer had. Here it is the bytes of the answer by what a
// token takes in vLLM's, at most what the client allowed; that bound, or 200, where the end is
// missing.
func Decisions(r io.Reader) (next Source, n int, err error) {
	list, err := readDecisions(r)
	if err != nil {
		return nil, 0, err
	}
	if len(list) == 0 {
		return nil, 0, errors.New("read decisions: there is none whose prompt was read")
	}
	slices.SortStableFunc(list, func(a, b *decided) int { return a.at.Compare(b.at) })
	first, n := list[0].at, len(list)
	if list[n-1].at.Sub(first) > maxTraceTime {
		return nil, 0, fmt.Errorf("read decisions: they span %s to %s, more than 100 years", first.Format(time.DateOnly), list[n-1].at.Format(time.DateOnly))
	}
	return func() (a Arrival, ok bool, err error) {
		if len(list) == 0 {
			return a, false, nil
		}
		d := list[0]
		list = list[1:]
		return Arrival{At: d.at.Sub(first), Prompt: d.prompt, Session: d.session, Output: d.answer()}, true, nil
	}, n, nil
}

func readDecisions(r io.Reader) (list []*decided, err error) {
	l := newLines(r)
	byID := map[string]*decided{}
	var bad error // a log that is being written may end amid a line
	for {
		line, err := l.next()
		if line == nil || err != nil {
			return list, err
		}
		if bad != nil {
			return nil, bad
		}
		var row decisionRow
		if err := json.Unmarshal(line, &row); err != nil {
			bad = l.fail(err)
			continue
		}
		if row.End != nil {
			if d := byID[row.End.ID]; d != nil {
				d.output = d.guess(row.End.ResponseBytes)
				delete(byID, row.End.ID)
			}
			continue
		}
		d, err := row.arrival(uint64(l.at))
		if err != nil {
			return nil, l.fail(err)
		}
		if d == nil {
			continue
		}
		if len(list) == maxDecisions {
			return nil, l.fail(fmt.Errorf("%w: a log may have %d decisions", errTraceTooLarge, maxDecisions))
		}
		list = append(list, d)
		byID[row.Decision.ID] = d
	}
}

// arrival is the request of a decision; nil for one that is left out.
func (row *decisionRow) arrival(line uint64) (*decided, error) {
	d := row.Decision
	if d == nil {
		return nil, errors.New("it has neither a decision nor an end")
	}
	if d.PromptTokens == 0 || d.Err != nil && d.Err.Status < 429 {
		return nil, nil
	}
	if d.PromptTokens < 0 || d.PromptTokens > maxTraceTokens || d.Blocks < 0 || d.BlockSize < 1 || d.Blocks > d.PromptTokens/d.BlockSize || d.MaxTokens < 0 {
		return nil, fmt.Errorf("%d prompt tokens in %d blocks of %d: they do not agree", d.PromptTokens, d.Blocks, d.BlockSize)
	}
	if row.HashEvery < 1 || len(row.Hashes) != (d.Blocks+row.HashEvery-1)/row.HashEvery {
		return nil, fmt.Errorf("%d hashes, one for %d blocks, do not name %d blocks", len(row.Hashes), row.HashEvery, d.Blocks)
	}
	a := &decided{at: d.At, session: d.Session, model: d.Model, stream: d.Stream, maxTokens: d.MaxTokens}
	if d.Wait != nil && !d.Wait.Since.IsZero() {
		a.at = d.Wait.Since
	}
	left := d.Blocks
	for _, h := range row.Hashes {
		n := min(row.HashEvery, left)
		a.prompt = append(a.prompt, stretch{uint64(h), n * d.BlockSize})
		left -= n
	}
	if rest := d.PromptTokens - d.Blocks*d.BlockSize; rest > 0 {
		a.prompt = append(a.prompt, stretch{line<<20 | 0xdec1de, rest}) // nobody else's
	}
	return a, nil
}

// What a token takes in vLLM's answers: of a stream an event, beside the model's name; otherwise its
// text, after what stands around it.
const (
	eventBytes  = 230
	tokenBytes  = 4.5
	aroundBytes = 500
)

func (d *decided) guess(bytes uint64) int {
	tokens := float64(bytes) / float64(eventBytes+len(d.model))
	if !d.stream {
		tokens = (float64(bytes) - aroundBytes) / tokenBytes
	}
	n := int(min(max(tokens, 1), maxTraceTokens))
	if d.maxTokens > 0 {
		n = min(n, d.maxTokens)
	}
	return n
}

func (d *decided) answer() int { return min(cmp.Or(d.output, d.maxTokens, 200), maxTraceTokens) }
