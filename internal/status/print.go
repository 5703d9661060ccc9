package status

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/cli"
)

// maxCell bounds the columns of a terminal that a cell of a table takes.
const maxCell = 60

// Print writes the tables that have rows, and then the findings. In colour, wrong states are red.
func (s *Status) Print(w io.Writer, inColour bool) {
	t := tables{w: w, inColour: inColour}

	t.print("PROCESS\tRUNS\tVERSION\tSTATE\tBUS\tCONFIGURATION\tCACHES EXACT", len(s.Parts), func(i int) []string {
		p := &s.Parts[i]
		caches := ""
		if p.Ranks > 0 {
			caches = fmt.Sprintf("%d of %d", p.Exact, p.Ranks)
		}
		return []string{p.Address, strings.Join(p.Runs, ", "), p.Version, p.State, p.Bus, p.Config, caches}
	})

	t.print("ENVOY\tVERSION\tLISTENERS\tROUTES\tCLUSTERS\tENDPOINTS\tENDS BY", len(s.Envoys), func(i int) []string {
		e := &s.Envoys[i]
		return []string{e.Name, e.Version, e.Listeners, e.Routes, e.Clusters, e.Endpoints, e.EndsBy}
	})
	const workers = "WORKER\tMODEL\tROLE\tPLACE\tSTATE\tHEALTH\tEVENTS\tCACHE\tLAG\tBLOCKS\tBOOKED\tRUNNING\tWAITING\tKV"
	t.print(workers, len(s.Workers), func(i int) []string {
		return workerRow(&s.Workers[i])
	})

	t.print("EMITTER\tMODEL\tADDRESS\tPLACE\tCACHE\tBLOCKS", len(s.Emitters), func(i int) []string {
		e := &s.Emitters[i]
		return []string{e.Name, e.Model, e.Address, e.Place, cacheText(e.State, e.Reason), fmt.Sprint(e.Blocks)}
	})

	t.print("POOL\tROLE\tREPLICAS\tREADY\tREASON", len(s.Pools), func(i int) []string {
		p := &s.Pools[i]
		return []string{p.Model, p.Role, fmt.Sprint(p.Replicas), fmt.Sprint(p.Ready), p.Reason}
	})
	t.print("STORE\tMODEL\tTIER\tSTATE\tBLOCKS\tROOM", len(s.Stores), func(i int) []string {
		p := &s.Stores[i]
		room := ""
		if p.Room > 0 {
			room = fmt.Sprint(p.Room)
		}
		return []string{p.Address, p.Model, p.Tier, p.State, fmt.Sprint(p.Blocks), room}
	})

	s.printFindings(&t)
}

// workerRow returns the cells of a worker.
func workerRow(w *Worker) []string {
	lag, usage := "", ""
	if w.Lag != nil {
		lag = fmt.Sprint(*w.Lag)
	}
	if w.KVUsage != nil {
		usage = fmt.Sprintf("%.0f%%", 100**w.KVUsage)
	}
	return []string{
		Title(w.Name, w.Rank), w.Model, w.Role, w.Place, w.State, w.Health, w.Events, cacheText(w.Cache, w.Reason), lag,
		fmt.Sprint(w.Blocks), fmt.Sprint(w.Booked), number(w.Running), number(w.Waiting), usage,
	}
}

// cacheText returns the state of a cache with its reason.
func cacheText(state, reason string) string {
	if reason == "" {
		return state
	}
	return state + " (" + reason + ")"
}

func number(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// printFindings writes the findings, or that there are none.
func (s *Status) printFindings(t *tables) {
	if len(s.Findings) == 0 {
		fmt.Fprintln(t.w, "\nNothing is wrong.")
		return
	}
	fmt.Fprintln(t.w)
	for _, f := range s.Findings {
		text := cli.OneLine(f.Subject + ": " + f.What)
		if f.Note {
			fmt.Fprintf(t.w, "note: %s\n", text)
			continue
		}
		fmt.Fprintf(t.w, "%s\n  do: %s\n", t.paint(text, true), cli.OneLine(f.Remedy))
	}
}

// wrong lists the words of cells that name a fault.
var wrong = []string{Stale, NotSent, "silent", "not ready", "degraded", "away", "refused", "cut off", "down", "failing", "stale", "unknown"}

// tables writes tables below each other, with aligned columns.
type tables struct {
	w        io.Writer
	inColour bool
	begun    bool
}

// print writes a table of rows. Cells of the header are separated by tabs. Columns without any value are left out, and without rows
// the table is.
func (t *tables) print(header string, rows int, row func(i int) []string) {
	if rows == 0 {
		return
	}
	if t.begun {
		fmt.Fprintln(t.w)
	}
	t.begun = true

	lines := [][]string{strings.Split(header, "\t")}
	width := make([]int, len(lines[0]))
	for i := range rows {
		cells := row(i)
		for j := range cells {
			cells[j] = cli.Clip(cli.OneLine(cells[j]), maxCell)
			width[j] = max(width[j], cli.Width(cells[j]))
		}
		lines = append(lines, cells)
	}
	last := len(width) - 1
	for last > 0 && width[last] == 0 {
		last--
	}

	for i, cells := range lines {
		for j, text := range cells {
			if width[j] == 0 {
				continue
			}
			if i > 0 && text == "" {
				text = "-"
			}
			fmt.Fprint(t.w, t.paint(text, i > 0 && isWrong(text)))
			if j < last {
				wide := max(width[j], cli.Width(lines[0][j]))
				fmt.Fprint(t.w, strings.Repeat(" ", wide-cli.Width(text)+2))
			}
		}
		fmt.Fprintln(t.w)
	}
}

// isWrong reports whether a cell is a word of wrong, apart from its reason.
func isWrong(text string) bool {
	before, _, _ := strings.Cut(text, " (")
	return slices.Contains(wrong, before)
}

// paint returns a text in red where that is wanted.
func (t *tables) paint(text string, red bool) string {
	if !red || !t.inColour {
		return text
	}
	return "\x1b[31m" + text + "\x1b[0m"
}
