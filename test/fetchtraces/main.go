// Command fetchtraces downloads the public traces that benchmarks and comparisons play, and checks their
// SHA-256. Files that are already there are kept.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/stator-project/stator/test/tracefiles"
)

func main() {
	folder := flag.String("folder", tracefiles.Folder, "`folder` to put the traces into")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	failed := false
	for _, f := range tracefiles.Public {
		if err := f.Fetch(ctx, *folder); err != nil {
			fmt.Fprintln(os.Stderr, "fetchtraces:", err)
			failed = true
			continue
		}
		fmt.Fprintf(os.Stdout, "%s/%s (%s)\n", *folder, f.Path, f.Licence)
	}
	if failed {
		os.Exit(1)
	}
}
