package metric

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxLine bounds a line of a metrics page.
const maxLine = 1 << 20

// Sample is one line of a metrics page.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Samples are the lines of a metrics page, in no particular order.
type Samples []Sample

// Read reads a page in the text format of Prometheus. Samples of histograms and summaries keep their
// names, such as latency_seconds_count. A page with a broken line is an error: no samples are returned.
func Read(r io.Reader) (Samples, error) {
	page, err := withoutComments(r)
	if err != nil {
		return nil, err
	}

	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}

	var all Samples
	for name, family := range families {
		for _, m := range family.Metric {
			all = append(all, Sample{Name: name, Labels: labels(m), Value: m.GetUntyped().GetValue()})
		}
	}
	return all, nil
}

// withoutComments drops comments, and with them the types. Without types every line is a sample
// under the name that it shows, and the order of the lines does not matter.
func withoutComments(r io.Reader) (io.Reader, error) {
	var page bytes.Buffer
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)

	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		page.Write(line)
		page.WriteByte('\n')
	}

	return &page, lines.Err()
}

func labels(m *dto.Metric) map[string]string {
	all := make(map[string]string, len(m.Label))
	for _, l := range m.Label {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

// Sum adds up the samples of a name. With pairs of label and value it adds up those that have them all.
func (s Samples) Sum(name string, pairs ...string) (total float64) {
	for _, sample := range s {
		if sample.Name == name && sample.has(pairs) {
			total += sample.Value
		}
	}
	return total
}

func (s Sample) has(pairs []string) bool {
	for i := 0; i+1 < len(pairs); i += 2 {
		if s.Labels[pairs[i]] != pairs[i+1] {
			return false
		}
	}
	return true
}

// Label returns the value of a label on a sample of that name, or "" if no sample has it.
func (s Samples) Label(name, label string) string {
	for _, sample := range s {
		if value, ok := sample.Labels[label]; ok && sample.Name == name {
			return value
		}
	}
	return ""
}
