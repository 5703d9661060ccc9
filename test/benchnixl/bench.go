// Command benchnixl measures the speed of NIXL on one host, beside plain Go that does the same: UCX over shared memory beside copy between
// two mappings, and UCX over TCP beside a TCP stream.
//
// Both kinds copy the same bytes in turns, and all bytes are compared after each copy. NIXL's times are measured in an agent: they
// include the way to stator-transfer and back. The bounds are Config.Memory and the context.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/nixl/transfer"
	"github.com/stator-project/stator/nixl/wire"
)

// Config is read by Run.
type Config struct {
	// Program is the path of stator-transfer, and Library the path of NIXL's C library.
	Program, Library string
	// BlockBytes are the sizes of blocks, of 1 KiB to 64 MiB in whole KiB.
	BlockBytes []int
	// Batch is the number of blocks of a transfer.
	Batch int
	// Rounds is the number of times that each copy is repeated.
	Rounds int
	// Device is the network device of UCX over TCP, such as lo.
	Device string
}

// The bounds of a Config.
const (
	mostMemory   = 1 << 30 // bytes of one side
	mostRounds   = 1000
	smallest     = 1 << 10
	largest      = 64 << 20
	mostSizes    = 8
	roundTimeout = 20 * time.Second
)

// Validate returns an error that names the value that is wrong.
func (c *Config) Validate() error {
	if len(c.BlockBytes) == 0 || len(c.BlockBytes) > mostSizes {
		return fmt.Errorf("%d block sizes, and there must be 1 to %d", len(c.BlockBytes), mostSizes)
	}
	if c.Rounds < 1 || c.Rounds > mostRounds {
		return fmt.Errorf("%d rounds, and there must be 1 to %d", c.Rounds, mostRounds)
	}
	for _, size := range c.BlockBytes {
		if size < smallest || size > largest || size%smallest != 0 {
			return fmt.Errorf("a block of %d bytes: it must have 1 KiB to 64 MiB, in whole KiB", size)
		}
		if c.Batch < 1 || c.Batch > mostMemory/size {
			return fmt.Errorf("batches of %d blocks of %d bytes: one side must have 1 block to 1 GiB", c.Batch, size)
		}
	}
	return nil
}

// Row is the measurement of one kind of copy.
type Row struct {
	// Link is the way on which blocks are copied, and Own what Go does in place of NIXL.
	Link, Own  string
	Write      bool
	BlockBytes int
	Batch      int
	// NIXL and Go are the times of the rounds, sorted.
	NIXL, Go []time.Duration
}

// Report has the measurements of Run.
type Report struct {
	Library, Program string
	Rows             []Row
	// Failed are links that could not be measured, with the reason.
	Failed map[string]error
	// RDMA are the devices of this host for which NIXL is meant. None of them is measured.
	RDMA []string
	CPUs int
	// LoadBefore and LoadAfter are the load average over one minute.
	LoadBefore, LoadAfter float64
}

// Run measures all links. An error comes from the configuration or from ctx; errors of single links are in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Report{
		Library: cfg.Library, Program: cfg.Program, Failed: map[string]error{}, RDMA: rdmaDevices(), CPUs: runtime.NumCPU(),
		LoadBefore: loadAverage(),
	}
	for _, open := range []func(ctx context.Context, cfg *Config, size int) (*link, error){openShared, openTCP} {
		for _, size := range cfg.BlockBytes {
			if err := r.measure(ctx, &cfg, size, open); err != nil {
				return r, err
			}
		}
	}
	r.LoadAfter = loadAverage()
	return r, nil
}

// measure adds the rows of one link and size. Its error is the error of ctx.
func (r *Report) measure(ctx context.Context, cfg *Config, size int, open func(context.Context, *Config, int) (*link, error)) error {
	l, err := open(ctx, cfg, size)
	if err == nil {
		err = r.copies(ctx, cfg, l, size)
		l.close()
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("not done in time: %w; pass a longer --timeout, fewer --rounds or smaller blocks", ctx.Err())
	}
	if err != nil {
		r.Failed[l.name] = err
	}
	return nil
}

// copies measures both directions of a link.
func (r *Report) copies(ctx context.Context, cfg *Config, l *link, size int) error {
	for _, write := range []bool{false, true} {
		row := Row{Link: l.name, Own: l.own, Write: write, BlockBytes: size, Batch: cfg.Batch}
		// The first round connects the processes and is not counted.
		for round := range cfg.Rounds + 1 {
			took, err := l.round(ctx, write, uint64(2*round), l.byNIXL)
			if err != nil {
				return err
			}
			own, err := l.round(ctx, write, uint64(2*round+1), l.byGo)
			if err != nil {
				return err
			}
			if round > 0 {
				row.NIXL = append(row.NIXL, took)
				row.Go = append(row.Go, own)
			}
		}
		slices.Sort(row.NIXL)
		slices.Sort(row.Go)
		r.Rows = append(r.Rows, row)
	}
	return nil
}

// layout returns one with blocks of that size.
func layout(size int) block.Layout {
	return block.Layout{
		Model: "probe", Layers: size / smallest, PageTokens: 1, Outer: 1, Inner: smallest, DType: "int8", TPSize: 1, Hashing: "none",
	}
}

// config returns the configuration of a helper.
func (c *Config) config(name string, size int, transport way) transfer.Config {
	return transfer.Config{
		Program: c.Program, Library: c.Library, Name: name, Layout: layout(size), Slots: c.Batch,
		Backends: []wire.Backend{transport.backend}, Env: transport.env,
	}
}

// Median returns the median of sorted times.
func Median(sorted []time.Duration) time.Duration { return Percentile(sorted, 50) }

// Percentile returns the time below which p percent of the sorted times are.
func Percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// Ratio returns how many times as long NIXL takes as Go, as the geometric mean of a link's rows, or 0 without rows.
func (r *Report) Ratio(link string) float64 {
	sum, n := 0.0, 0
	for _, row := range r.Rows {
		if row.Link == link {
			sum += math.Log(float64(Median(row.NIXL)) / float64(Median(row.Go)))
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return math.Exp(sum / float64(n))
}

// Err returns an error if a link could not be measured.
func (r *Report) Err() error {
	if len(r.Failed) == 0 {
		return nil
	}
	return errors.New("not everything could be measured: see above")
}

// rdmaDevices returns the names of this host's devices for RDMA.
func rdmaDevices() (names []string) {
	entries, err := os.ReadDir("/sys/class/infiniband")
	if err != nil {
		return nil // a kernel without RDMA has no such folder
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// loadAverage returns the load average of one minute, or 0 if it cannot be read.
func loadAverage() (load float64) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	_, _ = fmt.Fscan(strings.NewReader(string(text)), &load)
	return load
}
