package fleet

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// String prints the snapshot as an aligned table, a row per rank, with the load as it is now.
func (s *Snapshot) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKER\tRANK\tMODEL\tROLE\tSTATE\tADDRESS\tENGINE\tBOOKED\tPREFILL TOKENS\tDECODE BLOCKS\tRUNNING\tWAITING\tKV USED")
	for _, r := range s.Ranks {
		booked := r.Load.Booked()
		running, waiting := "-", "-"
		usage := "-"
		if rep, ok := r.Load.LastReport(); ok {
			running, waiting = fmt.Sprint(rep.Running), fmt.Sprint(rep.Waiting)
			usage = fmt.Sprintf("%.1f%%", 100*rep.KVUsage)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n",
			r.Worker.Name, r.Number, r.Worker.Model, r.Worker.Role, r.Worker.State, r.Worker.Address, r.Worker.Engine,
			booked.Requests, booked.PrefillTokens, booked.DecodeBlocks, running, waiting, usage)
	}
	_ = w.Flush() // writing to a strings.Builder never fails
	return b.String()
}
