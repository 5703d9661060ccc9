package admin

import (
	"fmt"
	"strconv"

	"github.com/stator-project/stator/kvbm/node"
)

// kvNIXLView is the state of copies from other nodes by NIXL.
type kvNIXLView struct {
	// PID is the process id of stator-transfer; 0 while it does not run, and Reason is why.
	PID      int    `json:"pid"`
	Reason   string `json:"reason"`
	Restarts int    `json:"restarts"`
	Fences   uint64 `json:"fences"`
	Leased   int    `json:"leased_blocks"`
	// Transfers are fetches by the way that blocks came. One that fell back to TCP counts for both.
	Transfers kvTransfers  `json:"transfers"`
	Peers     []kvNIXLPeer `json:"peers"`
}

type kvTransfers struct {
	NIXLOK     uint64 `json:"nixl_ok"`
	NIXLFailed uint64 `json:"nixl_failed"`
	TCPOK      uint64 `json:"tcp_ok"`
	TCPFailed  uint64 `json:"tcp_failed"`
}

// kvNIXLPeer is a peer with the way that its blocks came last, which is empty before the first fetch, and why they did not come by NIXL.
type kvNIXLPeer struct {
	Peer      string `json:"peer"`
	Transport string `json:"transport"`
	Reason    string `json:"reason"`
}

// viewKVNIXL returns nil if a store does not use NIXL.
func viewKVNIXL(s *node.Status) *kvNIXLView {
	n := s.NIXL
	if n == nil {
		return nil
	}
	v := &kvNIXLView{
		PID: n.PID, Reason: n.Reason, Restarts: n.Restarts, Fences: n.Fences, Leased: n.Held, Peers: []kvNIXLPeer{},
		Transfers: kvTransfers{n.NIXLOK, n.NIXLFailed, n.TCPOK, n.TCPFailed},
	}
	for _, p := range n.Peers {
		x := kvNIXLPeer{Peer: p.Address, Reason: p.Reason}
		switch {
		case p.NIXL:
			x.Transport = "nixl"
		case p.Reason != "":
			x.Transport = "tcp"
		}
		v.Peers = append(v.Peers, x)
	}
	return v
}

// kvNIXLTables lists copies by NIXL and their peers, for the stores that use it.
func kvNIXLTables(all []node.Status) string {
	var views []*kvNIXLView
	var models []string
	for i := range all {
		if v := viewKVNIXL(&all[i]); v != nil {
			views = append(views, v)
			models = append(models, all[i].Model)
		}
	}
	if len(views) == 0 {
		return ""
	}

	header := "MODEL\tTRANSFER PID\tRESTARTS\tFENCES\tLEASED\tNIXL OK\tNIXL FAILED\tTCP OK\tTCP FAILED"
	text := "\n" + table(header, func(row func(...any)) {
		for i, v := range views {
			t := &v.Transfers
			row(models[i], orDash(v.PID), v.Restarts, v.Fences, v.Leased, t.NIXLOK, t.NIXLFailed, t.TCPOK, t.TCPFailed)
		}
	})
	text += "\n" + table("MODEL\tPEER\tTRANSPORT\tWHY NOT NIXL", func(row func(...any)) {
		for i, v := range views {
			for _, p := range v.Peers {
				reason := "-"
				if p.Reason != "" {
					reason = strconv.Quote(p.Reason)
				}
				row(models[i], p.Peer, orDash(p.Transport), reason)
			}
		}
	})
	for i, v := range views {
		if v.PID == 0 {
			text += fmt.Sprintf("\nstator-transfer of %s does not run: %s\n", models[i], strconv.Quote(v.Reason))
		}
	}
	return text
}
