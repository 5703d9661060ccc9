package sim

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Azure reads a trace in the CSV of Azure's published ones: a header, then TIMESTAMP,
// ContextTokens and GeneratedTokens. Such a trace says nothing of what prompts have in common, so
// they share nothing.
//
// With sessions the rows are put together to conversations, by a guess: a row continues the
// longest conversation that it is long enough to contain, which had its last row a second to ten
// minutes before and makes up at least half of it; it then begins with that conversation's
// prompt. That is the most that could be reused by people who ask again, not what was.
func Azure(r io.Reader, sessions bool) Source {
	l := newLines(r)
	var first time.Time
	var guess conversations
	row := uint64(0)
	return func() (a Arrival, ok bool, err error) {
		line, err := l.next()
		if line != nil && l.at == 1 && strings.HasPrefix(strings.ToLower(strings.TrimPrefix(string(line), "\ufeff")), "timestamp,") {
			line, err = l.next()
		}
		if line == nil || err != nil {
			return a, false, err
		}
		at, input, output, err := azureRow(string(line))
		if err != nil {
			return a, false, l.fail(err)
		}
		if first.IsZero() {
			first = at
		}
		a.At, a.Output = at.Sub(first), max(1, output)
		if a.At < 0 || a.At > maxTraceTime {
			return a, false, l.fail(fmt.Errorf("timestamp %s: it lies before the first row, or too long after it", at.Format(time.DateTime)))
		}
		id := row<<20 | 0xa207e
		row++
		if sessions {
			id = guess.of(a.At, input, output, id)
			a.Session = strconv.FormatUint(id>>20, 10)
		}
		a.Prompt = stretches{{id, input}}
		return a, true, nil
	}
}

// azureRow reads one row.
func azureRow(line string) (at time.Time, input, output int, err error) {
	cells := strings.Split(strings.TrimRight(line, "\r"), ",")
	if len(cells) != 3 {
		return at, 0, 0, fmt.Errorf("%d columns: there must be TIMESTAMP,ContextTokens,GeneratedTokens", len(cells))
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", time.RFC3339} {
		if at, err = time.Parse(layout, cells[0]); err == nil {
			break
		}
	}
	if err != nil {
		return at, 0, 0, fmt.Errorf("timestamp %q: write it like 2023-11-16 18:15:46.68", cut(cells[0]))
	}
	input, err = strconv.Atoi(cells[1])
	if err != nil || input < 1 || input > maxTraceTokens {
		return at, 0, 0, fmt.Errorf("ContextTokens %q: it must be a number from 1 to %d", cut(cells[1]), maxTraceTokens)
	}
	output, err = strconv.Atoi(cells[2])
	if err != nil || output < 0 || output > maxTraceTokens {
		return at, 0, 0, fmt.Errorf("GeneratedTokens %q: it must be a number from 0 to %d", cut(cells[2]), maxTraceTokens)
	}
	return at, input, output, nil
}

// cut keeps what a message has room for.
func cut(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// conversations are those that may go on, the oldest first.
type conversations struct{ open []conversation }

type conversation struct {
	id     uint64
	length int // of its last prompt and answer
	last   time.Duration
}

// A conversation goes on after a second at the earliest, and is over after ten minutes.
const (
	soonest = time.Second
	latest  = 10 * time.Minute
	mostOf  = 1 << 14 // conversations that are remembered
)

// of is the conversation that a row continues, or fresh where it continues none.
func (c *conversations) of(at time.Duration, input, output int, fresh uint64) uint64 {
	over := 0
	for over < len(c.open) && (at-c.open[over].last > latest || len(c.open)-over >= mostOf) {
		over++
	}
	c.open = c.open[over:]
	best := -1
	for i, o := range c.open {
		if at-o.last >= soonest && o.length <= input && 2*o.length >= input && (best < 0 || o.length > c.open[best].length) {
			best = i
		}
	}
	id := fresh
	if best >= 0 {
		id = c.open[best].id
		c.open = append(c.open[:best], c.open[best+1:]...)
	}
	c.open = append(c.open, conversation{id, input + output, at})
	return id
}

var errTraceTooLarge = errors.New("it is too large")
