package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

// page is the report, in Markdown.
type page struct {
	b      strings.Builder
	rows   int // of the table that is being written
	missed []string
}

func (p *page) section(title string) { fmt.Fprintf(&p.b, "\n## %s\n\n", title) }

func (p *page) text(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n\n", args...) }

// item writes a line of a list.
func (p *page) item(format string, args ...any) { fmt.Fprintf(&p.b, "* "+format+"\n", args...) }

// row writes a row of a table. The first row has the titles.
func (p *page) row(cells ...any) {
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

// end ends a table.
func (p *page) end() {
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
		"template of Qwen3, behind Envoy and Stator on one machine. It compares what decisions expected with what the engines report " +
		"in their answers.")
	return p
}

// finish writes under which circumstances the report was made.
func (p *page) finish(b *bench) {
	p.section("This run")
	p.text("%s: vLLM %s, seed %d, %d cores, %s, load average at the end %s.", time.Now().UTC().Format(time.DateOnly), b.version, b.seed,
		runtime.NumCPU(), time.Since(b.begun).Round(time.Second), process.LoadAverage())
}
