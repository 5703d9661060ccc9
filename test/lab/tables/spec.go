package tables

import (
	"bytes"
	"embed"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

//go:embed *.yaml
var files embed.FS

// spec is a comparison: situations, in which contenders are played, and the figures that are shown. Flags are flags of
// `stator replay`.
type spec struct {
	Situations []situation `yaml:"situations"`
	// Quick are the situations of a run that shows that everything works.
	Quick []situation `yaml:"quick"`
	// Levels are further flags with which each situation is played.
	Levels     []level     `yaml:"levels"`
	Contenders []contender `yaml:"contenders"`
	Columns    []column    `yaml:"columns"`
}

// situation is a trace and a fleet. Trace is the name of a public trace, or empty for generated arrivals.
type situation struct {
	Name  string `yaml:"name"`
	Trace string `yaml:"trace"`
	Flags string `yaml:"flags"`
	// Times multiplies the number of seeds: traces of 400 requests have too few for one seed's p99.
	Times int `yaml:"times"`
	// Theirs are flags of the contender alone, and Ours has our own contender play it, too.
	Theirs string `yaml:"theirs"`
	Ours   bool   `yaml:"ours"`
	// Want has a figure for each column, of which 0 is not known, and Bound the largest relative difference from one.
	Want  []float64 `yaml:"want"`
	Bound float64   `yaml:"bound"`
}

// level is flags with a name.
type level struct {
	Name  string `yaml:"name"`
	Flags string `yaml:"flags"`
}

// contender is a router. A search chooses one of its settings, if it has some.
type contender struct {
	Name     string   `yaml:"name"`
	Flags    string   `yaml:"flags"`
	Settings []string `yaml:"settings"`
}

// column is a figure of a run, and its format as of fmt. Width is its width in a table in plain text.
type column struct {
	Title  string `yaml:"title"`
	Figure figure `yaml:"figure"`
	Format string `yaml:"format"`
	Width  int    `yaml:"width"`
}

// figure is the name of a figure of a run.
type figure string

// figures are the figures by name. Times are in milliseconds.
var figures = map[figure]func(*sim.Result) float64{
	"reuse":     func(r *sim.Result) float64 { return r.PrefixReuse },
	"ttft":      func(r *sim.Result) float64 { return r.TTFT.Mean },
	"ttft p50":  func(r *sim.Result) float64 { return r.TTFT.P50 },
	"ttft p99":  func(r *sim.Result) float64 { return r.TTFT.P99 },
	"itl":       func(r *sim.Result) float64 { return r.ITL.Mean },
	"e2e":       func(r *sim.Result) float64 { return r.E2E.Mean },
	"imbalance": func(r *sim.Result) float64 { return r.Imbalance() },
}

// of returns the figure of a run.
func (f figure) of(r *sim.Result) float64 { return figures[f](r) }

// publicTraces are the traces that situations name, as paths in the folder of traces.
var publicTraces = map[string]string{
	"": "", "mooncake": tracefiles.Mooncake.Path, "azure": tracefiles.Azure.Path, "sessions": tracefiles.Sessions,
	"dialogues": tracefiles.Dialogues,
}

// load reads a comparison.
func load(name string) (*spec, error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := &spec{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}

	for _, list := range [][]situation{s.Situations, s.Quick} {
		for i := range list {
			path, ok := publicTraces[list[i].Trace]
			if !ok {
				return nil, fmt.Errorf("read %s: %s: the trace %q is unknown", name, list[i].Name, list[i].Trace)
			}
			list[i].Trace = path
			list[i].Times = max(1, list[i].Times)
		}
	}
	for _, c := range s.Columns {
		if figures[c.Figure] == nil {
			return nil, fmt.Errorf("read %s: the figure %q is unknown", name, c.Figure)
		}
	}
	return s, nil
}

// head returns the head of a table in Markdown.
func head(titles ...string) string {
	return "| " + strings.Join(titles, " | ") + " |\n" + strings.Repeat("|---", len(titles)) + "|\n"
}

// titles returns the titles of the columns, after others.
func (s *spec) titles(first ...string) []string {
	for _, c := range s.Columns {
		first = append(first, c.Title)
	}
	return first
}
