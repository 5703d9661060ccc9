package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/status"
)

// table is columns and rows. On a narrow screen the last columns are left out.
type table struct {
	columns []column
	rows    []row
}

// column is a column of a table. Numbers are on the right, and sorted by their values.
type column struct {
	title string
	right bool
}

// row is a row of a table. Its key stays the same from one reading to the next.
type row struct {
	key   string
	cells []cell
}

// cell is a field of a table. A wrong one is red, and an unknown one has no text.
type cell struct {
	text   string
	number float64
	wrong  bool
}

// text returns all fields, for the filter.
func (r row) text() string {
	var b strings.Builder
	for _, c := range r.cells {
		b.WriteString(c.text + " ")
	}
	return b.String()
}

// word returns a cell with a text from elsewhere.
func word(text string) cell { return cell{text: cli.OneLine(text)} }

// bad returns a cell that is red if it is wrong.
func bad(text string, wrong bool) cell {
	c := word(text)
	c.wrong = wrong
	return c
}

// count and the functions below return cells with numbers. Those of a nil number are empty.
func count[T int | int64](n *T) cell {
	if n == nil {
		return cell{}
	}
	return cell{text: fmt.Sprint(*n), number: float64(*n)}
}

func percent(share *float64) cell {
	if share == nil {
		return cell{}
	}
	return cell{text: fmt.Sprintf("%.0f%%", 100**share), number: *share}
}

func share(part, whole int) *float64 {
	if whole <= 0 {
		return nil
	}
	return new(float64(part) / float64(whole))
}

func rate(v *float64) cell {
	if v == nil {
		return cell{}
	}
	return cell{text: fmt.Sprintf("%.1f", *v), number: *v}
}

func seconds(s *float64) cell {
	if s == nil {
		return cell{}
	}
	text := fmt.Sprintf("%.1fs", *s)
	if *s < 1 {
		text = fmt.Sprintf("%.0fms", 1000**s)
	}
	return cell{text: text, number: *s}
}

// columnsOf returns the columns of titles that are separated by tabs. A title with a # in front has numbers.
func columnsOf(titles string) (all []column) {
	for title := range strings.SplitSeq(titles, "\t") {
		title, right := strings.CutPrefix(title, "#")
		all = append(all, column{title, right})
	}
	return all
}

// all returns a list without its filter and order.
func (m *Model) all(v view) table {
	switch v {
	case workers:
		return m.workers()
	case queue:
		return m.queue()
	case tenants:
		return m.tenants()
	case decisions:
		return decisionTable(m.data.Decisions)
	default:
		return m.reasons()
	}
}

// isReady reports whether a rank takes requests.
func isReady(r *Rank) bool {
	return r.State == "ready" && (r.Health == "ready" || r.Health == "") && !r.Asleep
}

// stateOf returns the state of a worker, or its health where that is worse.
func stateOf(r *Rank) cell {
	switch {
	case r.State == "ready" && r.Asleep:
		return cell{text: "asleep"}
	case r.State == "ready" && r.Health != "":
		return bad(r.Health, r.Health != "ready")
	}
	return bad(r.State, r.State != "ready")
}

func (m *Model) workers() table {
	t := table{columns: columnsOf("WORKER\tSTATE\tCACHE\t#RUN\t#WAIT\t#BOOKED\t#KV\t#CACHED\t#REQ/S\t#TTFT\t#ITL\tMODEL\tROLE\tNODE\t" +
		"ADDRESS\tENGINE\tWHY")}
	for i := range m.data.Ranks {
		r := &m.data.Ranks[i]
		title := status.Title(r.Worker, r.Rank.Rank)
		why := r.Why
		if r.CacheReason != "" {
			why = r.CacheReason
		}
		t.rows = append(t.rows, row{title, []cell{
			word(title), stateOf(r), bad(r.Cache, r.Cache != "exact"), count(r.Running), count(r.Waiting), count(&r.Booked),
			percent(r.KVUsage), percent(r.Cached), rate(r.Rate), seconds(r.FirstToken), seconds(r.NextToken),
			word(r.Model), word(r.Role), word(r.Node), word(r.Address), word(r.Engine), word(why),
		}})
	}
	return t
}

func (m *Model) queue() table {
	t := table{columns: columnsOf("MODEL\tCLASS\t#REQUESTS\t#PROMPT TOKENS\t#CACHED")}
	for _, q := range m.data.Queue {
		t.rows = append(t.rows, row{q.Model + "\x00" + q.Class, []cell{
			word(q.Model), word(q.Class), count(&q.Requests), count(&q.Tokens), percent(share(q.Cached, q.Tokens)),
		}})
	}
	return t
}

// tenants groups the newest decisions by class and tenant.
func (m *Model) tenants() table {
	type group struct {
		class, tenant            string
		requests, waited, failed int
		seconds                  float64 // the longest wait
	}
	groups := map[string]*group{}
	var order []string // by the newest decision
	for i := range m.data.Decisions {
		d := &m.data.Decisions[i]
		g := group{tenant: d.Account}
		if d.Queue != nil {
			g.class = d.Queue.Class
			if g.tenant == "" {
				g.tenant = d.Queue.Tenant
			}
		}

		key := g.tenant + "\x00" + g.class
		if groups[key] == nil {
			groups[key] = &g
			order = append(order, key)
		}
		at := groups[key]
		at.requests++
		if d.Queue != nil {
			at.waited++
			at.seconds = max(at.seconds, d.Queue.WaitedSeconds)
		}
		if d.Outcome == "refused" {
			at.failed++
		}
	}

	t := table{columns: columnsOf("TENANT\tCLASS\t#REQUESTS\t#WAITED\t#LONGEST\t#REFUSED")}
	for _, key := range order {
		g := groups[key]
		longest := cell{}
		if g.waited > 0 {
			longest = seconds(&g.seconds)
		}
		refused := count(&g.failed)
		refused.wrong = g.failed > 0
		t.rows = append(t.rows, row{key, []cell{word(g.tenant), word(g.class), count(&g.requests), count(&g.waited), longest, refused}})
	}
	return t
}

// reasonOf returns why a request got no worker, or how a picked one was chosen.
func reasonOf(d *decisionlog.Decision) string {
	switch {
	case d.Reason != "":
		return d.Reason
	case d.Error != nil && d.Error.Code != "":
		return d.Error.Code
	case d.Error != nil:
		return d.Error.Message
	case d.Legs != nil && d.Split:
		return "two legs: " + d.Legs.Why
	}
	return ""
}

// reasons groups the newest decisions by outcome and reason.
func (m *Model) reasons() table {
	counts := map[[2]string]int{}
	newest := map[[2]string]time.Time{}
	var order [][2]string
	for i := range m.data.Decisions {
		d := &m.data.Decisions[i]
		key := [2]string{d.Outcome, reasonOf(d)}
		if counts[key] == 0 {
			order = append(order, key)
			newest[key] = d.At
		}
		counts[key]++
	}
	slices.SortStableFunc(order, func(a, b [2]string) int { return counts[b] - counts[a] })

	t := table{columns: columnsOf("OUTCOME\t#DECISIONS\t#SHARE\tNEWEST\tREASON")}
	for _, key := range order {
		n := counts[key]
		t.rows = append(t.rows, row{key[0] + "\x00" + key[1], []cell{
			bad(key[0], isBad(key[0])), count(&n), percent(share(n, len(m.data.Decisions))), clock(newest[key]), word(key[1]),
		}})
	}
	return t
}

// isBad reports whether an outcome is a fault for a client.
func isBad(outcome string) bool { return outcome != "picked" && outcome != "queued" }

func clock(at time.Time) cell { return cell{text: at.Local().Format(time.TimeOnly)} }

func decisionTable(all []decisionlog.Decision) table {
	t := table{columns: columnsOf("TIME\tDECISION\tOUTCOME\tWORKER\t#PROMPT\t#CACHED\t#WAITED\tREASON\tMODEL\tROLE\tTENANT\tSESSION")}
	for i := range all {
		d := &all[i]
		var waited cell
		tenant := d.Account
		if d.Queue != nil {
			waited = seconds(&d.Queue.WaitedSeconds)
			if tenant == "" {
				tenant = d.Queue.Tenant
			}
		}
		worker := ""
		if d.Worker != "" {
			worker = status.Title(d.Worker, d.Rank)
		}
		t.rows = append(t.rows, row{d.ID, []cell{
			clock(d.At), word(shortID(d.ID)), bad(d.Outcome, isBad(d.Outcome)), word(worker), count(&d.PromptTokens),
			percent(share(d.CachedTokens, d.PromptTokens)), waited, word(reasonOf(d)), word(d.Model), word(d.Role),
			word(tenant), word(d.Session),
		}})
	}
	return t
}

// shortID returns the end of an ID, which differs most.
func shortID(id string) string {
	const long = 12
	runes := []rune(id)
	if len(runes) <= long {
		return id
	}
	return "…" + string(runes[len(runes)-long+1:])
}

// decisionsOf returns the newest decisions about a rank.
func (m *Model) decisionsOf(title string) table {
	var own []decisionlog.Decision
	for _, d := range m.data.Decisions {
		if status.Title(d.Worker, d.Rank) == title {
			own = append(own, d)
		}
	}
	return decisionTable(own)
}

// textTable returns the lines of a decision's text as rows.
func textTable(e explanation, id string) table {
	text := e.text
	if e.id != id {
		text = "The text of the decision is read …"
	}
	t := table{columns: []column{{}}}
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		t.rows = append(t.rows, row{fmt.Sprint(i), []cell{{text: cli.OneLine(strings.ReplaceAll(line, "\t", "    "))}}})
	}
	return t
}
