package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/kvbm/direct"
	"github.com/stator-project/stator/kvbm/node"
	"github.com/stator-project/stator/kvbm/peers"
	"github.com/stator-project/stator/kvbm/pool"
	"github.com/stator-project/stator/kvbm/session"
)

// KVStore is the store of KV blocks of one model on this node.
type KVStore interface {
	Model() string
	Status() node.Status
	Pin(ctx context.Context, blocks node.Blocks, ttl time.Duration) (pinned int, err error)
	Prefetch(ctx context.Context, blocks node.Blocks) (there int, err error)
	Flush(ctx context.Context, tier string) (blocks map[fleet.Tier]int, err error)
}

// addKV adds the page about the stores of KV blocks, and the calls that change them.
func (s Sources) addKV(p *pages) {
	if s.KV == nil {
		return
	}
	p.addPage(pathKV, func(w http.ResponseWriter, r *http.Request) {
		all := make([]node.Status, len(s.KV))
		for i, store := range s.KV {
			all[i] = store.Status()
		}
		show(w, r, func() string { return kvTables(all) }, func() any { return viewKV(all) })
	})
	p.post(pathKVPin, s.pinKV)
	p.post(pathKVPrefetch, s.prefetchKV)
	p.post(pathKVFlush, s.flushKV)
}

// kvView is one store of /debug/kv. The fields after engines are null or zero until the first engine has connected.
type kvView struct {
	Model string `json:"model"`
	// State is waiting (for the first engine), failing (memory or a tier could not be opened) or serving.
	State       string            `json:"state"`
	Reason      string            `json:"reason"`
	Engines     []session.Engine  `json:"engines"`
	Refused     uint64            `json:"refused_sessions"`
	Quarantined int               `json:"quarantined_slots"`
	Layout      *kvLayout         `json:"layout"`
	HostBytes   int64             `json:"host_bytes"`
	ReadyBytes  int64             `json:"host_ready_bytes"`
	HugePages   bool              `json:"huge_pages"`
	Slots       pool.Stats        `json:"host_slots"`
	Committed   uint64            `json:"committed_blocks"`
	Found       uint64            `json:"found_blocks"`
	Fetched     uint64            `json:"fetched_blocks"`
	NoRoom      uint64            `json:"refused_blocks"`
	Tiers       []node.TierStatus `json:"tiers"`
	// PeerAddress is the address at which other nodes fetch blocks; empty if they do not.
	PeerAddress string `json:"peer_address"`
	// Peers are the nodes from which this one fetches blocks, and UnusedPeers is the number of further nodes that it does not
	// use.
	Peers       []peers.Status `json:"peers"`
	UnusedPeers int            `json:"unused_peers"`
	// NIXL is null without peerTransport: nixl.
	NIXL *direct.Stats `json:"nixl"`
}

// kvLayout has the properties that the bytes of a block depend on.
type kvLayout struct {
	BlockBytes int    `json:"block_bytes"`
	PageTokens int    `json:"page_tokens"`
	Layers     int    `json:"layers"`
	Outer      int    `json:"outer"`
	Inner      int    `json:"inner"`
	DType      string `json:"dtype"`
	TPSize     int    `json:"tp_size"`
	TPRank     int    `json:"tp_rank"`
	Model      string `json:"model"`
	Weights    string `json:"weights"`
	Hashing    string `json:"hashing"`
}

func viewKV(all []node.Status) []kvView {
	out := []kvView{}
	for i := range all {
		s := &all[i]
		v := kvView{
			Model: s.Model, State: s.State, Reason: s.Reason, Engines: append([]session.Engine{}, s.Engines...),
			Refused: s.Refused, Quarantined: s.Quarantined,
			HostBytes: s.HostBytes, ReadyBytes: s.ReadyBytes, HugePages: s.HugePages, Slots: s.Store.Slots,
			Committed: s.Store.Committed, Found: s.Store.Found, Fetched: s.Store.Fetched, NoRoom: s.Store.Refused,
			Tiers:       append([]node.TierStatus{}, s.Tiers...),
			PeerAddress: s.PeerAddress, Peers: append([]peers.Status{}, s.Peers...), UnusedPeers: s.UnusedPeers,
			NIXL: s.NIXL,
		}
		if l := &s.Layout; s.State == node.Serving {
			v.Layout = &kvLayout{
				l.Bytes(), l.PageTokens, l.Layers, l.Outer, l.Inner, l.DType, l.TPSize, l.TPRank, l.Model, l.Weights, l.Hashing,
			}
		}
		out = append(out, v)
	}
	return out
}

// kvTables returns the stores with their layouts, the tiers, the counts of blocks, the engines, and the reasons of failures.
func kvTables(all []node.Status) string {
	if len(all) == 0 {
		return "no engine of this process has a KV store: set models[].kv.hostBytes of a model that it launches\n"
	}
	header := "MODEL\tSTATE\tBLOCK BYTES\tTOKENS\tDTYPE\tHASHING\tHOST BYTES\tREADY\tHUGE PAGES\tREFUSED SESSIONS"
	text := table(header, func(row func(...any)) {
		for i := range all {
			s := &all[i]
			if s.State != node.Serving {
				row(s.Model, s.State, "-", "-", "-", "-", "-", "-", "-", s.Refused)
				continue
			}
			l := &s.Layout
			row(s.Model, s.State, l.Bytes(), l.PageTokens, l.DType, strconv.Quote(l.Hashing), s.HostBytes, s.ReadyBytes, s.HugePages,
				s.Refused)
		}
	})
	text += "\n" + kvTierTable(all) + "\n" + kvSlotTable(all) + kvPeerTable(all)

	text += "\n" + table("MODEL\tENGINE\tPID\tLEASES", func(row func(...any)) {
		for i := range all {
			for _, e := range all[i].Engines {
				row(all[i].Model, strconv.Quote(e.Name), e.PID, e.Leases)
			}
		}
	})
	return text + kvNIXLTables(all) + kvReasons(all)
}

// kvPeerTable lists the other nodes whose host memory is a tier, and where this node serves its own; empty without either.
func kvPeerTable(all []node.Status) (text string) {
	if slices.ContainsFunc(all, func(s node.Status) bool { return len(s.Peers) > 0 }) {
		text += "\n" + table("MODEL\tPEER\tNODE\tSTATE\tBLOCKS", func(row func(...any)) {
			for i := range all {
				for _, p := range all[i].Peers {
					row(all[i].Model, p.Address, cmp.Or(p.Node, "-"), p.State, p.Blocks)
				}
			}
		})
	}
	for i := range all {
		s := &all[i]
		if s.PeerAddress != "" {
			text += fmt.Sprintf("\nother nodes fetch blocks of %s at %s\n", s.Model, s.PeerAddress)
		}
		if s.UnusedPeers > 0 {
			text += fmt.Sprintf("\n%d more nodes have blocks of %s, above the bound of %d\n", s.UnusedPeers, s.Model, peers.Most)
		}
	}
	return text
}

// kvSlotTable lists the slots of host memory by state, and the counts of blocks.
func kvSlotTable(all []node.Status) string {
	header := "MODEL\tSLOTS\tRESET\tPARTIAL\tCOMPLETE\tACTIVE\tINACTIVE\tLEAVING\tQUARANTINED\tCOMMITTED\tFOUND\tFETCHED\tREFUSED"
	return table(header, func(row func(...any)) {
		for i := range all {
			c := &all[i].Store
			s := &c.Slots
			row(all[i].Model, s.Reset+s.Partial+s.Complete+s.Active+s.Inactive+s.Leaving+s.Quarantined, s.Reset, s.Partial, s.Complete,
				s.Active, s.Inactive, s.Leaving, s.Quarantined, c.Committed, c.Found, c.Fetched, c.Refused)
		}
	})
}

// kvTierTable lists the tiers with their blocks.
func kvTierTable(all []node.Status) string {
	header := "MODEL\tTIER\tHEALTH\tBLOCKS\tROOM\tPINNED\tWAITING\tCOPIED\tDROPPED\tFAILED\tLOADED\tDAMAGED\tERRORS"
	return table(header, func(row func(...any)) {
		for i := range all {
			s := &all[i]
			if s.State != node.Serving {
				continue
			}

			slots := &s.Store.Slots
			row(s.Model, fleet.Host, "healthy", slots.Active+slots.Inactive, s.HostBytes/int64(s.Layout.Bytes()), slots.Pinned,
				"-", "-", "-", "-", "-", "-", "-")
			for j := range s.Tiers {
				v := &s.Tiers[j]
				row(s.Model, v.Tier, v.Health, v.Blocks, orDash(v.Room), v.Pinned, v.Waiting, v.Copied, v.Dropped, v.Failed, v.Loaded,
					v.Damaged, v.Errors)
			}
		}
	})
}

// kvReasons lists why stores and tiers do not work, and the last errors of the ones that do. They quote texts of others.
func kvReasons(all []node.Status) (text string) {
	for i := range all {
		s := &all[i]
		switch s.State {
		case node.Waiting:
			text += fmt.Sprintf("\n%s waits for its first engine\n", s.Model)
		case node.Failed:
			text += fmt.Sprintf("\n%s cannot be opened, and the next engine tries again: %s\n", s.Model, strconv.Quote(s.Reason))
		}
		for _, t := range s.Tiers {
			switch {
			case t.Health != node.Healthy:
				text += fmt.Sprintf("\n%s of %s is %s: %s\n", t.Tier, s.Model, t.Health, strconv.Quote(t.Reason))
			case t.Reason != "":
				text += fmt.Sprintf("\n%s of %s works; its last error: %s\n", t.Tier, s.Model, strconv.Quote(t.Reason))
			}
		}
		for _, p := range s.Peers {
			if p.Reason != "" {
				text += fmt.Sprintf("\npeer %s of %s is not used: %s\n", p.Address, s.Model, strconv.Quote(p.Reason))
			}
		}
	}
	return text
}
