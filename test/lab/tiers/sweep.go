package tiers

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/sim"
)

// result is the mean times to first token at one setting of the sweep.
type result struct {
	text               string
	none, all, by, itl float64 // without tiers, with all that is there, by cost; itl is the ITL by cost relative to that without
}

// printSweep plays all combinations of some values, and prints where tiers made the time to first token longer.
func printSweep(w io.Writer, quick bool) error {
	var list []result
	for _, c := range sweep(quick) {
		none, _, err := play(&c, &setting{}, 1)
		if err != nil {
			return err
		}
		for _, host := range []float64{16e9, hostBytes} {
			for _, bandwidth := range []float64{1e9, 6e9, hostBandwidth} {
				for _, disk := range []bool{false, true} {
					s := setting{host: host, bandwidth: bandwidth, disk: disk}
					r, err := compare(&c, s, none)
					if err != nil {
						return err
					}
					list = append(list, r)
				}
			}
		}
	}

	show := func(name string, of func(r *result) float64) {
		worse := 0
		slices.SortFunc(list, func(a, b result) int { return cmp.Compare(of(&b)/b.none, of(&a)/a.none) })
		for i := range list {
			if of(&list[i]) > list[i].none*1.001 {
				worse++
			}
		}
		fmt.Fprintf(w, "\n%s: longer at %d of %d settings. The worst, the median and the best:\n", name, worse, len(list))
		for _, i := range []int{0, 1, 2, len(list) / 2, len(list) - 1} {
			r := &list[i]
			fmt.Fprintf(w, "- %s: %.0f ms, without tiers %.0f (%+.1f %%)\n", r.text, of(r), r.none, 100*(of(r)/r.none-1))
		}
	}
	fmt.Fprint(w, "\nSweep of the mean time to first token (users × first prompt × pause × host × bandwidth × disk), one seed. "+
		"Longer means by more than 0.1 %.\n")
	show("All is loaded", func(r *result) float64 { return r.all })
	show("What is faster is loaded", func(r *result) float64 { return r.by })
	return nil
}

// sweep returns the conversations of the sweep.
func sweep(quick bool) (list []conversations) {
	for _, users := range []int{20, 80, 160} {
		for _, first := range []int{512, 2048, 16384} {
			for _, pause := range []time.Duration{10 * time.Second, 30 * time.Second, 120 * time.Second} {
				c := shape
				c.users = users
				c.first = first
				c.pause = pause
				list = append(list, c)
			}
		}
	}
	if quick {
		return list[:1]
	}
	return list
}

// compare plays conversations with the tiers of a setting.
func compare(c *conversations, s setting, none *sim.Result) (result, error) {
	by, _, err := play(c, &s, 1)
	if err != nil {
		return result{}, err
	}
	s.all = true
	all, _, err := play(c, &s, 1)
	if err != nil {
		return result{}, err
	}
	return result{
		text: fmt.Sprintf("%d users, %d tokens, %v, host %.0f GB at %.0f GB/s, disk %t", c.users, c.first, c.pause, s.host/1e9,
			s.bandwidth/1e9, s.disk),
		none: none.TTFT.Mean, all: all.TTFT.Mean, by: by.TTFT.Mean, itl: by.ITL.Mean / none.ITL.Mean,
	}, nil
}
