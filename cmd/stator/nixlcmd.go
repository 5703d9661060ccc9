package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/kvbm/nixlprobe"
	"github.com/stator-project/stator/nixl/transfer"
)

const nixlAbout = `Measures what NIXL does on this machine, beside plain Go that copies the same bytes: UCX over shared memory
and TCP, and files. It lists NIXL's plugins, with what is missing for those that do not load. It runs
stator-transfer (make build-transfer) and needs NIXL's C library: docs/nixl.md has the way to install it.`

func runNIXL(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "nixl probe", nixlAbout)
	library := f.String("library", "",
		"`path` of libnixl_capi.so, of a folder or of a Python environment with it (default: $NIXL_LIB_DIR, then $VIRTUAL_ENV)")
	program := f.String("program", "", "`path` of stator-transfer (default: the one beside this program)")
	sizes := f.String("block-sizes", "64KiB,1MiB,4MiB", "sizes of blocks, with commas between them")
	var c nixlprobe.Config
	f.IntVar(&c.Batch, "batch", 8, "blocks of each transfer")
	f.IntVar(&c.Rounds, "rounds", 20, "how often each copy is repeated")
	f.StringVar(&c.Device, "device", "lo", "network `device` of UCX over TCP")
	f.StringVar(&c.Folder, "folder", "",
		"`folder` for a file as large as a transfer, which is read and written (default: $TMPDIR, then /tmp)")
	timeout := f.Duration("timeout", 3*time.Minute, "bound on the time of all measurements")

	if len(args) == 0 || args[0] != "probe" {
		if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
			return f.Read(args)
		}
		fmt.Fprintln(env.err, "stator nixl: use `stator nixl probe`")
		return cli.ErrUsage
	}
	if err := f.Read(args[1:]); err != nil {
		return err
	}
	var err error
	c.BlockBytes, err = parseSizes(*sizes)
	if err != nil {
		return f.UsageError("--block-sizes: %v", err)
	}
	if err := c.Validate(); err != nil {
		return f.UsageError("%v", err)
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
	report, err := nixlprobe.Run(ctx, c)
	if report != nil {
		report.Print(env.out)
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
