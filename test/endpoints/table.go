package endpoints

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Column has the results of one kind of engine.
type Column struct {
	// Engine is its name in the table, with its version if it ran. Kind is its kind in configurations.
	Engine string `json:"engine"`
	Kind   string `json:"kind"`
	// Results are by the names of rows.
	Results map[string]Result `json:"results"`
}

// LeaveAnswers removes the statuses of engines, because another one stood in for the column's.
func (c *Column) LeaveAnswers() {
	for row, r := range c.Results {
		if r.Routed != answered {
			r.Status = 0
			c.Results[row] = r
		}
	}
}

// Exact returns the number of exact routes.
func (c *Column) Exact() int {
	n := 0
	for _, r := range c.Results {
		if r.Routed == exact {
			n++
		}
	}
	return n
}

// Kinds are the kinds of engines, in the order of columns.
var Kinds = []string{"vllm", "llamacpp", "sim", "sglang", "trtllm", "dynamo"}

// Read reads the columns in a file of results.
func Read(file string) ([]Column, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var columns []Column
	if err := json.Unmarshal(raw, &columns); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return columns, nil
}

// Replace replaces columns in a file of results, or adds them.
func Replace(file string, columns ...Column) error {
	all, err := Read(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, c := range columns {
		all = append(slices.DeleteFunc(all, func(o Column) bool { return o.Kind == c.Kind }), c)
	}
	slices.SortFunc(all, func(a, b Column) int { return slices.Index(Kinds, a.Kind) - slices.Index(Kinds, b.Kind) })

	raw, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(raw, '\n'), 0o644)
}

// Table returns the columns as a table in Markdown. Rows that are equal in all columns are one.
func Table(columns []Column) string {
	var b strings.Builder
	b.WriteString("| Path |")
	for _, c := range columns {
		b.WriteString(" " + c.Engine + " |")
	}
	b.WriteString("\n|" + strings.Repeat("---|", 1+len(columns)) + "\n")

	var names []string
	var cells string
	end := func() {
		if len(names) > 0 {
			b.WriteString("| " + strings.Join(names, ", ") + " |" + cells + "\n")
		}
		names = nil
	}
	for _, r := range requests {
		var now strings.Builder
		for _, c := range columns {
			result := c.Results[r.row()]
			now.WriteString(" " + result.cell() + " |")
		}
		if now.String() != cells {
			end()
			cells = now.String()
		}
		names = append(names, r.row())
	}
	end()
	return b.String()
}

// cell returns a result as text.
func (r *Result) cell() string {
	how := "**exact**"
	switch r.Routed {
	case exact:
	case bySession:
		how = "session"
	case byLoad:
		how = "load"
	case answered:
		how = "gateway"
	default:
		return "?"
	}
	if r.Why != "" {
		how += " (`" + r.Why + "`)"
	}
	if r.Status == 0 || r.Status == http.StatusOK {
		return how
	}
	return fmt.Sprintf("%s, %d", how, r.Status)
}
