package trace

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// azureHeader names the columns of Azure's traces.
const azureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens"

// Azure reads a trace in the CSV of Azure's published ones: a header, and then [azureHeader]'s columns.
// Such a trace does not show which prompts have a common prefix, so they share none.
//
// With guessSessions set, rows are joined to conversations by a guess. A row continues the longest
// conversation that fits into its prompt, makes up at least half of it, and had its last row between one
// second and ten minutes before. The prompt then begins with that conversation. This is the most that
// people who ask again could reuse, not what they did reuse.
func Azure(r io.Reader, guessSessions bool) Source {
	a := azure{lines: newLines(r), guess: guessSessions}
	return a.next
}

// azure is an Azure trace that is being read.
type azure struct {
	lines *lines
	guess bool
	first time.Time // of the first row
	rows  uint64
	open  conversations
}

func (z *azure) next() (Arrival, bool, error) {
	line, err := z.lines.next()
	if line != nil && z.lines.at == 1 && isAzureHeader(string(line)) {
		line, err = z.lines.next()
	}
	if line == nil || err != nil {
		return Arrival{}, false, err
	}
	row, err := parseAzureRow(string(line))
	if err != nil {
		return Arrival{}, false, z.lines.fail(err)
	}

	if z.first.IsZero() {
		z.first = row.at
	}
	a := Arrival{At: row.at.Sub(z.first), Output: max(1, row.output)}
	if a.At < 0 || a.At > maxTraceTime {
		return a, false, z.lines.fail(fmt.Errorf("timestamp %s: it is before the first row, or too long after it",
			row.at.Format(time.DateTime)))
	}

	id := z.rows<<tagBits | tagAzure
	z.rows++
	if z.guess {
		id = z.open.assign(a.At, row, id)
		a.Session = strconv.FormatUint(id>>tagBits, 10)
	}
	a.Prompt = Segments{{id, row.input}}
	return a, true, nil
}

// azureRow is a row: its time, and tokens of the prompt and of the answer.
type azureRow struct {
	at            time.Time
	input, output int
}

// azureTimes are the layouts of timestamps in Azure's published traces.
var azureTimes = []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", time.RFC3339}

func parseAzureRow(line string) (row azureRow, err error) {
	cells := strings.Split(strings.TrimRight(line, "\r"), ",")
	if len(cells) != 3 {
		return row, fmt.Errorf("%d columns: there must be %s", len(cells), azureHeader)
	}

	for _, layout := range azureTimes {
		row.at, err = time.Parse(layout, cells[0])
		if err == nil {
			break
		}
	}
	if err != nil {
		return row, fmt.Errorf("timestamp %q: write it like 2023-11-16 18:15:46.68", quoted(cells[0]))
	}

	row.input, err = strconv.Atoi(cells[1])
	if err != nil || row.input < 1 || row.input > maxRowTokens {
		return row, fmt.Errorf("ContextTokens %q: it must be a number from 1 to %d", quoted(cells[1]), maxRowTokens)
	}
	row.output, err = strconv.Atoi(cells[2])
	if err != nil || row.output < 0 || row.output > maxRowTokens {
		return row, fmt.Errorf("GeneratedTokens %q: it must be a number from 0 to %d", quoted(cells[2]), maxRowTokens)
	}
	return row, nil
}

// conversations are the conversations that a later row may continue, oldest first.
type conversations struct{ open []conversation }

type conversation struct {
	id     uint64
	length int // tokens of its last prompt and answer
	last   time.Duration
}

const (
	// A person needs a second to ask again, and does not come back after ten minutes.
	soonestTurn = time.Second
	latestTurn  = 10 * time.Minute
	// maxConversations bounds the search for the conversation of a row.
	maxConversations = 1 << 14
)

// assign returns the id of the conversation that a row continues, or fresh if it begins one.
func (c *conversations) assign(at time.Duration, row azureRow, fresh uint64) uint64 {
	c.dropOld(at)

	best := -1
	for i, o := range c.open {
		fits := o.length <= row.input && 2*o.length >= row.input
		if fits && at-o.last >= soonestTurn && (best < 0 || o.length > c.open[best].length) {
			best = i
		}
	}

	id := fresh
	if best >= 0 {
		id = c.open[best].id
		c.open = append(c.open[:best], c.open[best+1:]...)
	}
	c.open = append(c.open, conversation{id, row.input + row.output, at})
	return id
}

// dropOld removes conversations that are over, and the oldest ones if there are too many.
func (c *conversations) dropOld(at time.Duration) {
	over := 0
	for over < len(c.open) && (at-c.open[over].last > latestTurn || len(c.open)-over >= maxConversations) {
		over++
	}
	c.open = c.open[over:]
}
