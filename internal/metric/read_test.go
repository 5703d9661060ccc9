package metric_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/metric"
)

// TestReadPage reads a page with every kind of metric, and asks for sums and labels.
func TestReadPage(t *testing.T) {
	s, err := metric.Read(strings.NewReader(`# HELP n Things.
# TYPE n counter
n{e="0",kind="a"} 3
n{e="1",kind="a"} 4 1700000000000
n_total 99
x_info{block_size="16",a="b"} 1
# TYPE wait histogram
wait_bucket{le="+Inf"} 7
wait_count 7
wait_sum 0.5
plain 5`))
	if err != nil {
		t.Fatal(err)
	}

	for _, tt := range []struct {
		name  string
		pairs []string
		want  float64
	}{
		{"n", nil, 7},
		{"n", []string{"e", "1"}, 4},
		{"n", []string{"e", "1", "kind", "b"}, 0},
		{"wait_count", nil, 7},
		{"wait_sum", nil, 0.5},
		{"plain", nil, 5},
		{"x", nil, 0},
	} {
		if got := s.Sum(tt.name, tt.pairs...); got != tt.want {
			t.Errorf("sum of %s%v: %v, want %v", tt.name, tt.pairs, got, tt.want)
		}
	}

	if s.Label("x_info", "block_size") != "16" || s.Label("x_info", "lock_size") != "" || s.Label("y", "a") != "" {
		t.Error("labels are wrong")
	}
}

// TestReadBrokenPages checks that a page with a broken line is refused as a whole.
func TestReadBrokenPages(t *testing.T) {
	for page, want := range map[string]string{
		"ok 1\n 5\n":                         "line 2",
		"ok 1\nhello\n":                      "line 2",
		"a{b=\"c\n":                          "line 1",
		"long " + strings.Repeat("1", 2<<20): "token too long",
	} {
		if s, err := metric.Read(strings.NewReader(page)); err == nil || !strings.Contains(err.Error(), want) || s != nil {
			t.Errorf("%.20q: %v, %v", page, s, err)
		}
	}
}

// FuzzReadSample writes a name, a label of any text and a value as Prometheus libraries do, and reads
// them back.
func FuzzReadSample(f *testing.F) {
	f.Add("qwen", uint32(3))
	f.Add(`a"} 7 {b="`, uint32(0))
	f.Add("\\\n}", uint32(1<<31-1))
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

	f.Fuzz(func(t *testing.T, label string, n uint32) {
		label = strings.ToValidUTF8(label, "?")
		label = strings.NewReplacer("\r", "?").Replace(label)
		n >>= 1
		for _, line := range []string{
			fmt.Sprintf("metric{model=%q} %d", "", n),
			fmt.Sprintf(`metric{model="%s"} %d`, escape.Replace(label), n),
			fmt.Sprintf(`metric{model="%s",} %d 1700000000000`, escape.Replace(label), n),
			fmt.Sprintf("metric %d.0", n),
			fmt.Sprintf("metric\t%d\r", n),
		} {
			s, err := metric.Read(strings.NewReader(line))
			if err != nil || len(s) != 1 || s[0].Name != "metric" || s[0].Value != float64(n) {
				t.Fatalf("%q is read as %v, %v", line, s, err)
			}
		}
	})
}
