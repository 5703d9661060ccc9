package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

// page is the report, in Markdown.
type page struct {
	b       strings.Builder
	rows    int  // of the table that is being written
	listing bool // the last line is one of a list
	missed  []string
}

func (p *page) section(title string) {
	fmt.Fprintf(&p.b, sectionMark+"%s\n\n", title)
	p.listing = false
}

const sectionMark = "\n## "

// text writes a paragraph. It ends a list.
func (p *page) text(format string, args ...any) {
	if p.listing {
		p.b.WriteByte('\n')
		p.listing = false
	}
	fmt.Fprintf(&p.b, format+"\n\n", args...)
}

// item writes a line of a list.
func (p *page) item(format string, args ...any) {
	fmt.Fprintf(&p.b, "* "+format+"\n", args...)
	p.listing = true
}

// writeRow writes a row of a table. The first row has the titles.
func (p *page) writeRow(cells ...any) {
	p.b.WriteByte('|')
	for _, c := range cells {
		fmt.Fprintf(&p.b, " %v |", c)
	}
	p.b.WriteByte('\n')
	if p.rows == 0 {
		p.b.WriteString("|" + strings.Repeat("---|", len(cells)) + "\n")
	}
	p.rows++
}

// endTable ends a table.
func (p *page) endTable() {
	p.b.WriteByte('\n')
	p.rows = 0
}

// bar writes whether a bar was met.
func (p *page) bar(what string, met bool) {
	word := "met"
	if !met {
		word = "**not met**"
		p.missed = append(p.missed, what)
	}
	p.item("Bar: %s: %s", what, word)
}

// share prints a part of a whole.
func share(part, whole int) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// newPage begins the report.
func newPage() *page {
	p := &page{}
	p.b.WriteString("# Beside real engines\n\n")
	p.text("`make test-vllm` writes this page: two vLLM on processors, with a tiny model of random weights and the vocabulary and " +
		"template of Qwen3, behind Envoy and Stator on one machine. It compares the expectations of decisions with the reports of " +
		"engines in their answers.")
	return p
}

// finish writes under which circumstances a section was made.
func (p *page) finish(b *bench, begun time.Time) {
	fmt.Fprintf(&p.b, "\n%s", time.Now().UTC().Format(time.DateOnly))
	if b.version != "" {
		fmt.Fprintf(&p.b, ", vLLM %s", b.version)
	}
	fmt.Fprintf(&p.b, ", seed %d, %d cores, %s, load average at the end %s.\n", b.seed, runtime.NumCPU(),
		time.Since(begun).Round(time.Second), process.LoadAverage())
}

// merge returns an earlier report whose sections are replaced by a new report's sections of the same titles. Sections that the
// earlier one lacks come last.
func merge(earlier, now string) string {
	title := func(section string) string {
		first, _, _ := strings.Cut(section, "\n")
		return first
	}
	if earlier == "" {
		return now
	}
	sections := strings.Split(earlier, sectionMark)
	for _, fresh := range strings.Split(now, sectionMark)[1:] {
		at := slices.IndexFunc(sections, func(s string) bool { return title(s) == title(fresh) })
		fresh = strings.TrimRight(fresh, "\n") + "\n"
		if at < 0 {
			sections = append(sections, fresh)
			continue
		}
		sections[at] = fresh
	}
	return strings.Join(sections, sectionMark)
}
