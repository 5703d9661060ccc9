package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/status"
)

const (
	// headLines is the lines above a table, its titles among them, and frameLines those around its rows.
	headLines  = 6
	frameLines = headLines + 2
	// workerLines is the lines with the figures of one worker.
	workerLines = 5
	// maxCell bounds the columns of a terminal that a field of a table takes; the last field of a row may have the rest of the line.
	maxCell = 28
	// leastCell is how narrow the last field may be.
	leastCell = 6
	// mostInText is the rows of each list but the workers in [Model.Text].
	mostInText = 20
)

// The escapes of a terminal that a frame has if it is in colour.
const (
	red       = "\x1b[31m"
	noRed     = "\x1b[39m"
	reverse   = "\x1b[7m"
	bold      = "\x1b[1m"
	noEffects = "\x1b[0m"
)

var listNames = [numLists]string{"workers", "queue", "tenants", "decisions", "reasons"}

// page returns how many rows a screen of this height has.
func (m *Model) page(height int) int {
	if o := m.top(); o != nil && o.view == oneWorker {
		height -= workerLines
	}
	return max(1, height-frameLines)
}

// Frame returns the lines of a screen: at most height lines of at most width columns. In colour, wrong states are red and the chosen row
// is reversed.
func (m *Model) Frame(width, height int, inColour bool) []string {
	p := paint{inColour}
	head := m.head()
	lines := []string{
		p.with(bold, cli.Clip(head[0], width)), cli.Clip(head[1], width), cli.Clip(head[2], width), cli.Clip(head[3], width),
		cli.Clip(m.where(), width),
	}
	if o := m.top(); o != nil && o.view == oneWorker {
		for _, line := range m.worker(o.key) {
			lines = append(lines, cli.Clip(line, width))
		}
	}

	t := m.table()
	c, page := m.cursor(), m.page(height)
	c.settle(t.rows, page)
	shown := t.rows[c.top:min(len(t.rows), c.top+page)]
	layout := t.layout(width - 2)
	lines = append(lines, p.with(bold, strings.TrimRight("  "+layout.titles(), " ")))
	for i, r := range shown {
		if c.top+i == c.row {
			lines = append(lines, p.with(reverse, "> "+layout.line(r, p)))
		} else {
			lines = append(lines, "  "+layout.line(r, p))
		}
	}

	for len(lines) < height-2 {
		lines = append(lines, "")
	}
	lines = append(lines, p.with(red, cli.Clip(m.trouble(), width)), cli.Clip(m.help(), width))
	return lines[:max(0, min(len(lines), height))]
}

// Text returns the head and all lists as plain text: all workers, and the first rows of the other lists.
func (m *Model) Text() string {
	head := m.head()
	lines := head[:]
	for v := range numLists {
		t := m.all(v)
		if v != workers {
			t.rows = t.rows[:min(len(t.rows), mostInText)]
		}
		if len(t.rows) == 0 {
			continue
		}
		layout := t.layout(1 << 20)
		lines = append(lines, "", layout.titles())
		for _, r := range t.rows {
			lines = append(lines, layout.line(r, paint{}))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// head returns the lines about the whole router.
func (m *Model) head() [4]string {
	d := &m.data
	if d.At.IsZero() {
		return [4]string{"stator top  " + cli.OneLine(m.Title), "No data yet."}
	}

	ready, exact := 0, 0
	booked := int64(0)
	for i := range d.Ranks {
		r := &d.Ranks[i]
		if isReady(r) {
			ready++
		}
		if r.Cache == "exact" {
			exact++
		}
		booked += r.Booked
	}
	queued := 0
	for _, q := range d.Queue {
		queued += q.Requests
	}
	head := [4]string{
		fmt.Sprintf("stator top  %s  %s  %s", d.At.Local().Format(time.TimeOnly), cli.OneLine(m.Title), cli.OneLine(d.Ready)),
		fmt.Sprintf("Ranks: %d of %d ready, %d caches exact. Requests: %d booked, %d queued", ready, len(d.Ranks), exact, booked, queued),
		"Decisions/s: known after 30 s",
	}

	if h := d.Last; h != nil {
		cached := cell{text: "-"}
		if h.Prompt > 0 {
			cached = percent(new(h.Cached / h.Prompt))
		}
		head[2] = fmt.Sprintf("Decisions/s: %.1f picked, %.1f refused. Answers/s: %.1f failed, %.1f retried",
			h.Picked, h.Refused, h.Failed, h.Retried)
		head[3] = fmt.Sprintf("Prompt cached: %s. First token: %s p50, %s p95. Answers: %.0f tokens/s", cached.text,
			known(float64(h.First50)), known(float64(h.First95)), h.Answer)
	}
	return head
}

// known returns a time as text. The history has no time where it is 0.
func known(s float64) string {
	if s == 0 {
		return "-"
	}
	return seconds(&s).text
}

// where returns the line with the lists, or with the worker or the decision that is shown.
func (m *Model) where() string {
	if o := m.top(); o != nil {
		kind := map[view]string{oneWorker: "Worker ", oneDecision: "Decision "}[o.view]
		return kind + cli.OneLine(o.key)
	}

	var b strings.Builder
	for v, name := range listNames {
		text := fmt.Sprintf("%d %s", v+1, name)
		if view(v) == m.list {
			text = "[" + text + "]"
		}
		b.WriteString(text + "  ")
	}
	l := &m.lists[m.list]
	if l.sorted > 0 {
		b.WriteString("by " + m.all(m.list).columns[l.sorted-1].title)
	}
	if l.descending {
		b.WriteString("▼ ")
	}
	if l.filter != "" {
		b.WriteString("  /" + cli.OneLine(l.filter))
	}
	return strings.TrimRight(b.String(), " ")
}

// worker returns the figures of one rank.
func (m *Model) worker(title string) [workerLines]string {
	for i := range m.data.Ranks {
		r := &m.data.Ranks[i]
		if status.Title(r.Worker, r.Rank.Rank) != title {
			continue
		}
		lines := [workerLines]string{
			fmt.Sprintf("%s worker of %s: %s %s at %s, node %s", r.Role, r.Model, orDash(r.Engine), stateOf(r).text,
				r.Address, orDash(r.Node)),
			fmt.Sprintf("Health %s: %s. Cache %s: %s", orDash(r.Health), orDash(r.Why), orDash(r.Cache), orDash(r.CacheReason)),
			fmt.Sprintf("Requests: %s running, %s waiting, %d booked; KV cache used: %s", orDash(count(r.Running).text),
				orDash(count(r.Waiting).text), r.Booked, orDash(percent(r.KVUsage).text)),
			fmt.Sprintf("Booked: %d prompt tokens to compute, %d blocks to decode", r.Prefill, r.Decode),
			fmt.Sprintf("Requests/s: %s. Prompt cached: %s. First token: %s, next ones: %s", orDash(rate(r.Rate).text),
				orDash(percent(r.Cached).text), orDash(seconds(r.FirstToken).text), orDash(seconds(r.NextToken).text)),
		}
		for j := range lines {
			lines[j] = cli.OneLine(lines[j])
		}
		return lines
	}
	return [workerLines]string{"The router has no worker of this name now."}
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// trouble returns why the data is old; empty if it is not.
func (m *Model) trouble() string {
	if m.err == nil {
		return ""
	}
	return cli.OneLine("No data: " + m.err.Error())
}

func (m *Model) help() string {
	if m.typing {
		return "filter: " + cli.OneLine(m.lists[m.list].filter) + "_    enter keep  esc remove"
	}
	return "q quit  ↑↓ choose  enter open  esc back  tab list  / filter  s sort  r reverse"
}

// paint adds escapes in colour.
type paint struct{ inColour bool }

// with returns a text in a style of the terminal.
func (p paint) with(style, text string) string {
	switch {
	case !p.inColour || text == "":
		return text
	case style == red:
		return red + text + noRed
	}
	return style + text + noEffects
}

// layout is the columns that fit on a line, with their widths.
type layout struct {
	columns []column
	widths  []int
}

// layout chooses the columns that fit beside each other, the first ones first.
func (t *table) layout(width int) layout {
	l := layout{}
	left := width
	for i, c := range t.columns {
		most := cli.Width(c.title)
		for _, r := range t.rows {
			most = max(most, cli.Width(r.cells[i].text))
		}

		gap := 2
		if i == 0 {
			gap = 0
		}
		// A column that does not fit may be clipped if it has texts; it is the last one then.
		wide := min(most, maxCell)
		isLast := i == len(t.columns)-1
		if isLast && !c.right {
			wide = most
		}
		if wide > left-gap {
			wide = left - gap
			isLast = true
			if i > 0 && (c.right || wide < leastCell) {
				break
			}
		}
		l.columns, l.widths = append(l.columns, c), append(l.widths, max(0, wide))
		left -= gap + wide
		if isLast {
			break
		}
	}
	return l
}

func (l *layout) titles() string {
	r := row{}
	for _, c := range l.columns {
		r.cells = append(r.cells, cell{text: c.title})
	}
	return strings.TrimRight(l.line(r, paint{}), " ")
}

// line returns a row as text.
func (l *layout) line(r row, p paint) string {
	var b strings.Builder
	for i, c := range l.columns {
		if i > 0 {
			b.WriteString("  ")
		}
		f := r.cells[i]
		if f.text == "" && c.title != "" {
			f.text = "-"
		}
		text := cli.Clip(f.text, l.widths[i])
		pad := strings.Repeat(" ", max(0, l.widths[i]-cli.Width(text)))
		if f.wrong {
			text = p.with(red, text)
		}

		switch {
		case c.right:
			b.WriteString(pad + text)
		case i == len(l.columns)-1:
			b.WriteString(text)
		default:
			b.WriteString(text + pad)
		}
	}
	return b.String()
}
