package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/nixl/transfer"
	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("benchnixl", run) }

// run measures and prints the report, also if some links could not be measured.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("benchnixl", flag.ContinueOnError)
	f.SetOutput(progress)
	var c Config
	library := f.String("library", "",
		"path of libnixl_capi.so, of a folder or of a Python environment with it (default: $NIXL_LIB_DIR, then $VIRTUAL_ENV)")
	program := f.String("program", "bin/stator-transfer", "path of stator-transfer")
	sizes := f.String("block-sizes", "64KiB,1MiB,4MiB", "sizes of blocks, with commas between them")
	f.IntVar(&c.Batch, "batch", 8, "blocks of each transfer")
	f.IntVar(&c.Rounds, "rounds", 20, "how often each copy is repeated")
	f.StringVar(&c.Device, "device", "lo", "network device of UCX over TCP")
	timeout := f.Duration("timeout", 3*time.Minute, "bound on the time of all measurements")
	err := f.Parse(args)
	if err != nil {
		return err
	}

	c.BlockBytes, err = parseSizes(*sizes)
	if err != nil {
		return fmt.Errorf("--block-sizes: %w", err)
	}
	c.Program, err = transfer.FindProgram(*program)
	if err != nil {
		return err
	}
	c.Library, err = transfer.FindLibrary(*library)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	report, err := Run(ctx, c)
	if report != nil {
		report.Print(out)
		err = errors.Join(err, report.Err())
	}
	return err
}

// parseSizes reads sizes such as 64KiB and 1MiB.
func parseSizes(text string) (sizes []int, err error) {
	for _, part := range strings.Split(text, ",") {
		number, unit := part, 1
		for suffix, bytes := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20} {
			if n, ok := strings.CutSuffix(part, suffix); ok {
				number, unit = n, bytes
			}
		}
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 1 || n > 1<<30 {
			return nil, fmt.Errorf("%q is no size: write 64KiB or 1MiB", part)
		}
		sizes = append(sizes, n*unit)
	}
	return sizes, nil
}
