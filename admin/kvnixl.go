package admin

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/stator-project/stator/kvbm/node"
)

// kvNIXLTables lists copies by NIXL and their peers, for the stores that use it.
func kvNIXLTables(all []node.Status) string {
	using := slices.DeleteFunc(slices.Clone(all), func(s node.Status) bool { return s.NIXL == nil })
	if len(using) == 0 {
		return ""
	}

	header := "MODEL\tTRANSFER PID\tRESTARTS\tFENCES\tLEASED\tNIXL OK\tNIXL FAILED\tTCP OK\tTCP FAILED"
	text := "\n" + table(header, func(row func(...any)) {
		for i := range using {
			n := using[i].NIXL
			row(using[i].Model, orDash(n.PID), n.Restarts, n.Fences, n.Held, n.NIXLOK, n.NIXLFailed, n.TCPOK, n.TCPFailed)
		}
	})
	text += "\n" + table("MODEL\tPEER\tTRANSPORT\tWHY NOT NIXL", func(row func(...any)) {
		for i := range using {
			for _, p := range using[i].NIXL.Peers {
				reason := "-"
				if p.Reason != "" {
					reason = strconv.Quote(p.Reason)
				}
				row(using[i].Model, p.Address, orDash(p.Transport), reason)
			}
		}
	})
	for i := range using {
		if n := using[i].NIXL; n.PID == 0 {
			text += fmt.Sprintf("\nstator-transfer of %s does not run: %s\n", using[i].Model, strconv.Quote(n.Reason))
		}
	}
	return text
}
