package queue

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios runs testdata/*.txt. Verbs:
//
//	classes [requests=N]          text: a class per line: NAME [quantum=N] [order=wspt] [fair] [requests=N] [tokens=N]
//	push NAME... [class=C] [tenant=T] [lane=L] [strict=N] [jump=SECONDS] [tokens=N] [cached=N] [wait=SECONDS]
//	next N [closed=LANE]          takes up to N, one after another
//	leave NAME...
//	expire                        who has waited too long
//	pass SECONDS
//	ahead [class=C] [tenant=T] [strict=N] [jump=SECONDS] [tokens=N]    a token is a millisecond of work
//	stats
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		w := &world{q: New(Config{}), items: map[string]*Item{}, now: t0}
		datadriven.RunTest(t, file, w.act)
	})
}

type world struct {
	q     *Queue
	items map[string]*Item
	now   time.Time
}

func word(args []datadriven.CmdArg, key string) string {
	for _, a := range args {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return ""
}

func count(args []datadriven.CmdArg, key string) int {
	n, _ := strconv.Atoi(word(args, key))
	return n
}

func (w *world) request(args []datadriven.CmdArg) Request {
	r := Request{
		Class: word(args, "class"), Tenant: word(args, "tenant"), Lane: word(args, "lane"), Strict: count(args, "strict"),
		HeadStart: time.Duration(count(args, "jump")) * time.Second, Tokens: count(args, "tokens"), Cached: count(args, "cached"), At: w.now,
	}
	r.Work = time.Duration(r.cost()) * time.Millisecond
	r.Until = w.now.Add(time.Hour)
	if n := count(args, "wait"); n > 0 {
		r.Until = w.now.Add(time.Duration(n) * time.Second)
	}
	return r
}

func (w *world) act(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "classes":
		return w.classes(t, d)
	case "push":
		return w.push(d)
	case "next":
		closed := word(d.CmdArgs, "closed")
		n, _ := strconv.Atoi(d.CmdArgs[0].Key)
		var out []string
		for range n {
			it := w.q.Next(func(it *Item) bool { return closed == "" || it.Lane != closed })
			if it == nil {
				break
			}
			w.q.Take(it)
			out = append(out, it.Value.(string))
		}
		return strings.Join(out, " ") + "\n"
	case "leave":
		for _, a := range d.CmdArgs {
			if !w.q.Remove(w.items[a.Key]) {
				return a.Key + " was not there\n"
			}
		}
	case "expire":
		text := ""
		for it := w.q.PopExpired(w.now); it != nil; it = w.q.PopExpired(w.now) {
			text += it.Value.(string) + "\n"
		}
		return text
	case "pass":
		n, _ := strconv.Atoi(d.CmdArgs[0].Key)
		w.now = w.now.Add(time.Duration(n) * time.Second)
	case "ahead":
		return fmt.Sprintln(w.q.Ahead(w.request(d.CmdArgs)))
	case "stats":
		text := ""
		for _, s := range w.q.Stats() {
			text += fmt.Sprintf("%s: %d requests, %d tokens, %d cached\n", s.Name, s.Requests, s.Tokens, s.CachedTokens)
		}
		return text
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

func (w *world) classes(t *testing.T, d *datadriven.TestData) string {
	cfg := Config{Limit: Limit{Requests: count(d.CmdArgs, "requests")}}
	for line := range strings.Lines(d.Input) {
		name, args, err := datadriven.ParseLine(strings.TrimSpace(line))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		order, err := ParseOrder(word(args, "order"))
		if err != nil {
			return err.Error() + "\n"
		}
		c := Class{Name: name, Quantum: count(args, "quantum"), Order: order, Limit: Limit{Requests: count(args, "requests"), Tokens: count(args, "tokens")}}
		for _, a := range args {
			c.Fair = c.Fair || a.Key == "fair"
		}
		cfg.Classes = append(cfg.Classes, c)
	}
	if err := cfg.Validate(); err != nil {
		return err.Error() + "\n"
	}
	w.q.Configure(cfg)
	return ""
}

func (w *world) push(d *datadriven.TestData) string {
	for _, a := range d.CmdArgs {
		if len(a.Vals) > 0 {
			continue
		}
		r := w.request(d.CmdArgs)
		r.Value = a.Key
		it, full := w.q.Push(r)
		if full != nil {
			return a.Key + ": " + full.Error() + "\n"
		}
		w.items[a.Key] = it
	}
	return ""
}
