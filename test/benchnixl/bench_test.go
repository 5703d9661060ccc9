package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/nixl/transfer"
)

func TestValidate(t *testing.T) {
	good := Config{BlockBytes: []int{64 << 10}, Batch: 8, Rounds: 20}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(c *Config){
		"block sizes":       func(c *Config) { c.BlockBytes = nil },
		"0 rounds":          func(c *Config) { c.Rounds = 0 },
		"a block of 1000":   func(c *Config) { c.BlockBytes = []int{1000} },
		"batches of 0":      func(c *Config) { c.Batch = 0 },
		"batches of 100000": func(c *Config) { c.Batch = 100000 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, size := range []int{smallest, 64 << 10, largest} {
		if l := layout(size); l.Validate() != nil || l.Bytes() != size {
			t.Errorf("the layout of %d bytes has %d: %v", size, l.Bytes(), l.Validate())
		}
	}
}

// TestStream copies over the stream in both directions, and the comparison finds a byte that is wrong.
func TestStream(t *testing.T) {
	const size, batch = 4096, 8
	l := &link{here: make([]byte, size*batch), there: make([]byte, size*batch)}
	byGo, err := l.stream(size)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for i, write := range []bool{false, true, false, true} {
		if _, err := l.round(t.Context(), write, uint64(i+1), byGo); err != nil {
			t.Errorf("round %d: %v", i, err)
		}
	}

	l.there[77]++
	if err := l.compare(); !errors.Is(err, errBytes) {
		t.Errorf("a wrong byte: %v", err)
	}
}

func times(micros ...int) (list []time.Duration) {
	for _, m := range micros {
		list = append(list, time.Duration(m)*time.Microsecond)
	}
	return list
}

// TestPrint has a table of made-up times, and advice for each case.
func TestPrint(t *testing.T) {
	row := func(link string, nixl, plain int) Row {
		return Row{Link: link, Own: "own", BlockBytes: 1 << 20, Batch: 1, NIXL: times(nixl), Go: times(plain)}
	}
	r := &Report{
		Rows:   []Row{row(SharedMemory, 300, 100), row(SharedMemory, 1200, 100), row(TCP, 100, 200)},
		Failed: map[string]error{"another link": errors.New("the reason")},
		RDMA:   []string{"mlx5_0"},
	}
	var b strings.Builder
	r.Print(&b)
	for _, want := range []string{
		"another link could not be measured: the reason",
		"Between processes of this node, use copy() of a shared mapping: NIXL by stator-transfer takes 6.0 times as long.",
		"Over TCP, use NIXL: a TCP stream in Go takes 2.0 times as long.",
		"3.50 (3.50 to 3.50)",
		"This host has RDMA by mlx5_0, which was not measured",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	r.Rows = []Row{row(TCP, 100, 95)}
	b.Reset()
	if r.Print(&b); !strings.Contains(b.String(), "Over TCP, use a TCP stream in Go: NIXL by stator-transfer takes the same time") {
		t.Errorf("equal times:\n%s", &b)
	}
	if r.Err() == nil {
		t.Error("a link that could not be measured is no error")
	}
}

func TestPercentiles(t *testing.T) {
	sorted := times(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	if Median(sorted) != 6*time.Microsecond || Percentile(sorted, 90) != 10*time.Microsecond || Percentile(nil, 50) != 0 {
		t.Errorf("%v, %v", Median(sorted), Percentile(sorted, 90))
	}
}

// TestRun measures all links with real NIXL in a few rounds.
func TestRun(t *testing.T) {
	if os.Getenv("NIXL_LIB_DIR") == "" {
		t.Skip("NIXL_LIB_DIR names no folder with libnixl_capi.so: run make test-nixl, which installs it into the checkout")
	}
	library, err := transfer.FindLibrary("")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Program: filepath.Join(t.TempDir(), "stator-transfer"), Library: library, BlockBytes: []int{64 << 10}, Batch: 4, Rounds: 3,
		Device: "lo",
	}
	build := exec.Command("go", "build", "-o", c.Program, "github.com/stator-project/stator/cmd/stator-transfer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	r, err := Run(t.Context(), c)
	if err != nil || r.Err() != nil || len(r.Rows) != 4 {
		t.Fatalf("%v, %d rows, %v", err, len(r.Rows), r.Failed)
	}
	for _, row := range r.Rows {
		if len(row.NIXL) != 3 || row.NIXL[0] <= 0 || row.Go[0] <= 0 {
			t.Errorf("%+v", row)
		}
	}

	c.Device = "absent0"
	r, err = Run(t.Context(), c)
	if err != nil || r.Err() == nil || len(r.Rows) != 2 || r.Failed[TCP] == nil {
		t.Errorf("a network device that does not exist: %v, %d rows, %v", err, len(r.Rows), r.Failed)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without time: %v", err)
	}
}
