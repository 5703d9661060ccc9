// Package top shows a router live in a terminal: its workers, queue, tenants, decisions and their reasons, and on request one worker or
// one decision.
//
// A [Reader] reads the admin pages of a router, and [Readers] several routers as one. A [Model] holds the last reading and the state of the
// screen. It is pure: [Model.Read] and [Model.Press] change it, and [Model.Frame] returns the lines of a screen. [Run] connects both
// with a terminal. [Model.Text] is for scripts.
//
// Names in the pages come from engines and clients. They are shown as one line of printable text each. A Model and a Reader belong to one
// goroutine each.
package top

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/status"
)

// Data is one reading of a router.
type Data struct {
	At        time.Time
	Ready     string // the first line of /readyz that is not "ok", or "ready"
	Ranks     []Rank
	Queue     []Waiting
	Decisions []decisionlog.Decision // the newest first, without their candidates
	// Last is the newest point of the history; nil in the first seconds of a router.
	Last *history.Point
}

// Rank is one rank of an engine. The figures are those of its worker, nil where they are not known: averages between the last two readings
// of the router's metrics, and since the router's start until there are two.
type Rank struct {
	status.Rank
	Figures
}

// Figures are of the ended requests of a worker.
type Figures struct {
	Rate       *float64 // requests a second
	Cached     *float64 // the share of prompt tokens that was cached
	FirstToken *float64 // from the request to the first token of a stream, in seconds
	NextToken  *float64 // between two tokens, in seconds; known if all answers were streams
}

// Waiting is one class of a queue.
type Waiting struct {
	Model    string `json:"model"`
	Class    string `json:"class"`
	Requests int    `json:"requests"`
	Tokens   int    `json:"tokens"`
	Cached   int    `json:"cached_tokens"`
}

// Key is a key of a keyboard: a character, or one of the keys below.
type Key rune

// Keys without a character.
const (
	Up Key = utf8.MaxRune + 1 + iota
	Down
	PageUp
	PageDown
	Home
	End
	Enter
	Escape
	Backspace
	Tab
	BackTab
	Interrupt // Ctrl-C
	otherKey
)

// view is a list, or a thing that is opened from one.
type view int

const (
	workers view = iota
	queue
	tenants
	decisions
	reasons
	numLists
	oneWorker   = numLists // opened from workers
	oneDecision = oneWorker + 1
)

// maxFilter bounds the characters of a filter.
const maxFilter = 60

// Model is the state of the screen. The zero value shows workers and no data; set Title before the first frame.
type Model struct {
	// Title names the router.
	Title string

	data    Data
	err     error // of the last reading; the data is older
	quit    bool
	typing  bool // keys go to the filter
	opened  []opened
	lists   [numLists]list
	list    view // the list that is shown, or was before something was opened
	explain explanation
}

// list is the state of one table.
type list struct {
	sorted     int // the column, counted from 1; 0 for the order of the data
	descending bool
	filter     string
	cursor     cursor
}

// cursor is a position in rows. The key stays the same when rows move.
type cursor struct {
	row, top int
	key      string
}

// opened is a worker or a decision that is shown in place of the lists.
type opened struct {
	view   view
	key    string // of the row that was opened
	cursor cursor
}

// explanation is the text of a decision.
type explanation struct{ id, text string }

// Read takes a reading over. With an error the data of the reading before stays.
func (m *Model) Read(d Data, err error) {
	m.err = err
	if err == nil {
		m.data = d
	}
}

// Wanted returns the ID of the decision whose text is shown and not there yet; empty if there is none.
func (m *Model) Wanted() string {
	if o := m.top(); o != nil && o.view == oneDecision && m.explain.id != o.key {
		return o.key
	}
	return ""
}

// Explain takes the text of a decision over.
func (m *Model) Explain(id, text string) { m.explain = explanation{id, text} }

// Quit reports whether a key has ended the program.
func (m *Model) Quit() bool { return m.quit }

// top returns the worker or decision that is shown; nil for a list.
func (m *Model) top() *opened {
	if len(m.opened) == 0 {
		return nil
	}
	return &m.opened[len(m.opened)-1]
}

// Press changes the state by a key. height is the lines of the screen.
func (m *Model) Press(k Key, height int) {
	if k == Interrupt {
		m.quit = true
		return
	}
	if m.typing {
		m.typeFilter(k)
		return
	}

	l := &m.lists[m.list]
	switch k {
	case 'q':
		m.quit = true
	case Escape, Backspace:
		m.back(l)
	case Enter:
		m.open()
	case '1', '2', '3', '4', '5':
		m.show(view(k - '1'))
	case Tab:
		m.show((m.list + 1) % numLists)
	case BackTab:
		m.show((m.list + numLists - 1) % numLists)
	case '/':
		m.typing = len(m.opened) == 0
	case 's':
		l.sorted = (l.sorted + 1) % (len(m.table().columns) + 1)
	case 'r':
		l.descending = !l.descending
	default:
		m.move(k, m.page(height))
	}
}

func (m *Model) show(v view) { m.list, m.opened = v, nil }

// back closes what is open, or else removes the filter.
func (m *Model) back(l *list) {
	if n := len(m.opened); n > 0 {
		m.opened = m.opened[:n-1]
		return
	}
	l.filter = ""
}

// typeFilter changes the filter by a key.
func (m *Model) typeFilter(k Key) {
	l := &m.lists[m.list]
	switch {
	case k == Enter:
		m.typing = false
	case k == Escape:
		m.typing, l.filter = false, ""
	case k == Backspace:
		_, size := utf8.DecodeLastRuneInString(l.filter)
		l.filter = l.filter[:len(l.filter)-size]
	case k < Up && k >= ' ' && utf8.RuneCountInString(l.filter) < maxFilter:
		l.filter += string(rune(k))
	}
}

// open shows the worker or the decision of the chosen row.
func (m *Model) open() {
	t, c := m.table(), m.cursor()
	c.settle(t.rows, len(t.rows))
	switch {
	case len(t.rows) == 0:
	case m.top() == nil && m.list == workers:
		m.opened = append(m.opened, opened{view: oneWorker, key: c.key})
	case m.top() == nil && m.list == decisions, m.top() != nil && m.top().view == oneWorker:
		m.opened = append(m.opened, opened{view: oneDecision, key: c.key})
	}
}

// cursor returns the position in the rows that are shown.
func (m *Model) cursor() *cursor {
	if o := m.top(); o != nil {
		return &o.cursor
	}
	return &m.lists[m.list].cursor
}

// move moves the position by a key, of which page are on a screen.
func (m *Model) move(k Key, page int) {
	rows := m.table().rows
	c := m.cursor()
	c.settle(rows, page)
	switch k {
	case Up, 'k':
		c.row--
	case Down, 'j':
		c.row++
	case PageUp:
		c.row -= page
	case PageDown, ' ':
		c.row += page
	case Home, 'g':
		c.row = 0
	case End, 'G':
		c.row = len(rows) - 1
	}
	c.key = ""
	c.settle(rows, page)
}

// settle finds the row of the key again, and keeps the position on rows that are there and on the screen.
func (c *cursor) settle(rows []row, page int) {
	if c.key != "" {
		if i := slices.IndexFunc(rows, func(r row) bool { return r.key == c.key }); i >= 0 {
			c.row = i
		}
	}
	c.row = max(0, min(c.row, len(rows)-1))
	c.key = ""
	if len(rows) > 0 {
		c.key = rows[c.row].key
	}
	// The top is at most the last one that fills the screen.
	c.top = max(0, min(c.top, c.row, len(rows)-page), c.row-page+1)
}

// table returns the rows that are shown, filtered and sorted.
func (m *Model) table() table {
	if o := m.top(); o != nil {
		switch o.view {
		case oneWorker:
			return m.decisionsOf(o.key)
		default:
			return textTable(m.explain, o.key)
		}
	}
	t := m.all(m.list)
	t.narrow(&m.lists[m.list])
	return t
}

// narrow keeps the rows that have all words of the filter, and sorts them.
func (t *table) narrow(l *list) {
	words := strings.Fields(strings.ToLower(l.filter))
	t.rows = slices.DeleteFunc(t.rows, func(r row) bool {
		text := strings.ToLower(r.text())
		return slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
	})
	if l.sorted == 0 {
		if l.descending {
			slices.Reverse(t.rows)
		}
		return
	}

	column := l.sorted - 1
	slices.SortStableFunc(t.rows, func(a, b row) int {
		x, y := a.cells[column], b.cells[column]
		// Unknown values are last in both directions.
		switch {
		case x.text == "" && y.text == "":
			return 0
		case x.text == "":
			return 1
		case y.text == "":
			return -1
		}
		order := cmp.Compare(x.number, y.number)
		if !t.columns[column].right {
			order = cmp.Compare(x.text, y.text)
		}
		if l.descending {
			return -order
		}
		return order
	})
}
