package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Print writes the report as text for people.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "library  %s\nprogram  %s\n\n", r.Library, r.Program)
	r.printRows(w)
	for _, name := range slices.Sorted(maps.Keys(r.Failed)) {
		fmt.Fprintf(w, "%s could not be measured: %v\n\n", name, r.Failed[name])
	}
	r.printAdvice(w)
}

func (r *Report) printRows(w io.Writer) {
	if len(r.Rows) == 0 {
		return
	}
	fmt.Fprintf(w, "GB/s: median, and the range from the 10th to the 90th percentile, of %d rounds; all bytes were compared.\n"+
		"%d CPUs, load average %.1f before and %.1f after.\n\n", len(r.Rows[0].NIXL), r.CPUs, r.LoadBefore, r.LoadAfter)

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "Link\tOperation\tBlocks\tNIXL by stator-transfer\tIn its place\tIn GB/s\tNIXL's time, times")
	for _, row := range r.Rows {
		operation := "READ"
		if row.Write {
			operation = "WRITE"
		}
		fmt.Fprintf(t, "%s\t%s\t%d × %s\t%s\t%s\t%s\t%.1f\n", row.Link, operation, row.Batch, Size(row.BlockBytes), row.rates(row.NIXL),
			row.Own, row.rates(row.Go), float64(Median(row.NIXL))/float64(Median(row.Go)))
	}
	_ = t.Flush()
	fmt.Fprintln(w)
}

// rate returns gigabytes for each second.
func (row *Row) rate(took time.Duration) string {
	if took <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(row.Batch)*float64(row.BlockBytes)/float64(took.Nanoseconds()))
}

// rates returns the median and the range.
func (row *Row) rates(sorted []time.Duration) string {
	return fmt.Sprintf("%s (%s to %s)", row.rate(Median(sorted)), row.rate(Percentile(sorted, 90)), row.rate(Percentile(sorted, 10)))
}

// Size returns bytes in the largest unit that leaves no rest.
func Size(n int) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// printAdvice states which way the figures favour. A difference below a tenth is none.
func (r *Report) printAdvice(w io.Writer) {
	const noise = 1.1
	for _, l := range []struct{ name, own, between string }{
		{SharedMemory, "copy() of a shared mapping", "Between processes of this node"},
		{TCP, "a TCP stream in Go", "Over TCP"},
	} {
		switch ratio := r.Ratio(l.name); {
		case ratio == 0:
		case ratio > noise:
			fmt.Fprintf(w, "%s, use %s: NIXL by stator-transfer takes %.1f times as long.\n", l.between, l.own, ratio)
		case ratio < 1/noise:
			fmt.Fprintf(w, "%s, use NIXL: %s takes %.1f times as long.\n", l.between, l.own, 1/ratio)
		default:
			fmt.Fprintf(w, "%s, use %s: NIXL by stator-transfer takes the same time, and needs a second process.\n", l.between, l.own)
		}
	}

	if len(r.RDMA) == 0 {
		fmt.Fprintln(w, "This host has no device for RDMA (/sys/class/infiniband), for which NIXL is meant.")
	} else {
		fmt.Fprintf(w, "This host has RDMA by %s, which was not measured: for it, and for memory of GPUs, use NIXL.\n",
			strings.Join(r.RDMA, ", "))
	}
}
