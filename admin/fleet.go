package admin

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// fleetView is /debug/fleet.
type fleetView struct {
	Ranks []rankView `json:"ranks"`
	// Null in a process without an index.
	Index *kvindex.Coverage `json:"index"`
	// Emitters are caches outside engines whose events the router reads.
	Emitters []emitterView `json:"emitters,omitempty"`
}

// rankView is one rank of a fleet.
type rankView struct {
	rankName
	// Transfer is the way that the worker takes part in transfers of KV caches, and TransferAt the address that requests name.
	// Both are empty for workers without.
	Transfer   string `json:"transfer,omitempty"`
	TransferAt string `json:"transfer_at,omitempty"`

	State   string `json:"state"`
	Address string `json:"address"` // the listed name and port while the name does not resolve
	Engine  string `json:"engine"`
	Epoch   uint64 `json:"epoch"`
	healthView
	// UnleasedSince is null while the worker's lease is current, and for workers without leases.
	UnleasedSince *time.Time `json:"unleased_since"`
	Taints        []string   `json:"taints,omitempty"`
	// Place is the worker's place, such as "zone=a rack=7", and PlaceSource the source of the taints that name it: "taints" of the
	// configuration, "pod labels" or "node labels". Both are left out if no place is known.
	Place       string `json:"place,omitempty"`
	PlaceSource string `json:"place_source,omitempty"`
	// Adapters are the LoRA adapters of the worker's engine; null if it does not list them.
	Adapters []string `json:"adapters"`
	loadView

	// Figures are the numbers in force or reported of the engine, by name: block_size, capacity_tokens, context_length, max_requests and
	// max_batch_tokens. One that is unknown is left out.
	Figures map[string]figureView `json:"figures"`

	// CacheState is empty in a process without cache states, and "off" for an engine without a prefix cache. CacheReason is why it is
	// stale.
	CacheState  string `json:"cache_state,omitempty"`
	CacheReason string `json:"cache_reason,omitempty"`

	leased bool // its agent reports its health
}

// rankName is which rank it is, and which model and part of requests it serves.
type rankName struct {
	Worker string `json:"worker"`
	Rank   int    `json:"rank"`
	Node   string `json:"node"`
	Model  string `json:"model"`
	Role   string `json:"role"`
}

// healthView is the known health of a worker, and the evidence for it.
type healthView struct {
	Health string `json:"health"`
	Asleep bool   `json:"asleep,omitempty"` // its engine has reported so
	// Why is the evidence, and HealthSince when the health began: null for the health at first.
	Why         string     `json:"why,omitempty"`
	HealthSince *time.Time `json:"health_since"`
	// Probed is when the engine answered last or was found silent; null for workers whose agents ask them.
	Probed *time.Time `json:"probed"`
}

// loadView is the load of a rank: what routers have booked there, and what its engine has reported.
type loadView struct {
	BookedRequests      int64 `json:"booked_requests"`
	BookedPrefillTokens int64 `json:"booked_prefill_tokens"`
	BookedDecodeBlocks  int64 `json:"booked_decode_blocks"`

	// Null until the engine has reported its load.
	ReportedRunning *int     `json:"reported_running"`
	ReportedWaiting *int     `json:"reported_waiting"`
	ReportedKVUsage *float64 `json:"reported_kv_usage"`
	// ReportedStepTokens is left out for an engine without speculative decoding.
	ReportedStepTokens float64 `json:"reported_step_tokens,omitempty"`
}

// figureView is a number that an engine reports, and its source: "metrics", "models", "options" or "events". Configured is the number of
// the configuration or the lease, which counts instead.
type figureView struct {
	Value      int    `json:"value,omitempty"`
	Source     string `json:"source,omitempty"`
	Configured int    `json:"configured,omitempty"`
}

// viewFigures returns the figures of a worker's engine.
func viewFigures(w *fleet.Worker) map[string]figureView {
	out := map[string]figureView{}
	add := func(name string, f fleet.Figure, configured int) {
		if f.Value > 0 || configured > 0 {
			out[name] = figureView{f.Value, f.Source.String(), configured}
		}
	}
	add("block_size", w.Figures.BlockSize, w.BlockSize)
	add("capacity_tokens", w.Figures.Capacity, 0)
	add("context_length", w.Figures.ContextLength, 0)
	add("max_requests", w.Figures.Requests, w.MaxRequests)
	add("max_batch_tokens", w.Figures.BatchTokens, 0)
	return out
}

// fleet shows the workers.
func (s Sources) fleet(w http.ResponseWriter, r *http.Request) {
	snapshot := s.Fleet()
	var index *kvindex.Coverage
	if s.Coverage != nil {
		index = new(s.Coverage())
	}
	show(w, r,
		func() string {
			return fleetTable(snapshot, s.Feed) + coverageText(index) + emittersTable(s.viewEmitters())
		},
		func() any { return fleetView{viewRanks(snapshot, s.Feed), index, s.viewEmitters()} })
}

// emitterView is a cache outside engines.
type emitterView struct {
	Name  string `json:"name"`
	Model string `json:"model"`
	// Address is the endpoint of its events.
	Address string `json:"address"`
	// Place is the ranks that can load its blocks: "cluster", "node NAME", or a number of workers.
	Place string `json:"place"`
	// Connected means that its event socket is connected. Its blocks count only then.
	Connected   bool   `json:"connected"`
	CacheState  string `json:"cache_state"`
	CacheReason string `json:"cache_reason,omitempty"`
	Blocks      int    `json:"blocks"`
	// Messages are its own, and OtherTopics the messages of other caches on the same socket.
	Messages    uint64 `json:"messages"`
	OtherTopics uint64 `json:"other_topics"`
	// LastEvent is null before the first batch.
	LastEvent *time.Time `json:"last_event"`
}

func (s Sources) viewEmitters() (list []emitterView) {
	if s.Emitters == nil {
		return nil
	}
	for _, e := range s.Emitters() {
		v := emitterView{
			Name: e.Name, Model: e.Model, Address: e.Address, Place: e.Place, Connected: e.Connected,
			CacheState: e.State.String(), CacheReason: e.Reason.String(), Blocks: e.Blocks,
			Messages: e.Messages, OtherTopics: e.OtherTopics,
		}
		if !e.LastEvent.IsZero() {
			v.LastEvent = &e.LastEvent
		}
		list = append(list, v)
	}
	return list
}

// emittersTable returns a row for each cache outside engines; nothing without one.
func emittersTable(list []emitterView) string {
	if len(list) == 0 {
		return ""
	}
	return "\n" + table("EMITTER\tMODEL\tPLACE\tCONNECTED\tCACHE\tBLOCKS\tMESSAGES\tOF OTHER TOPICS", func(row func(...any)) {
		for i := range list {
			e := &list[i]
			row(e.Name, e.Model, e.Place, e.Connected, cacheText(e.CacheState, e.CacheReason), e.Blocks, e.Messages, e.OtherTopics)
		}
	})
}

// viewRanks returns the ranks of a fleet. caches is nil in a process without cache states.
func viewRanks(s *fleet.Snapshot, caches *feed.Feed) []rankView {
	out := []rankView{}
	for _, r := range s.Ranks {
		booked, w := r.Load.Booked(), r.Worker
		v := rankView{
			rankName: rankName{Worker: w.Name, Rank: r.Number, Node: fleet.NodeOf(w.Name), Model: w.Model, Role: w.Role.String()},
			State:    w.State.String(),
			Address:  cmp.Or(w.Address, w.Named), Engine: w.Engine, Epoch: w.Epoch, Taints: w.Taints.Names(),
			loadView: loadView{
				BookedRequests: booked.Requests, BookedPrefillTokens: booked.PrefillTokens, BookedDecodeBlocks: booked.DecodeBlocks,
			},
			leased: w.Leased && w.Unleased.IsZero(), TransferAt: w.TransferAt, Figures: viewFigures(w),
		}
		if w.Transfer != fleet.NoTransfer {
			v.Transfer = w.Transfer.String()
		}

		if place := w.Place(); place.IsKnown() {
			v.Place, v.PlaceSource = place.String(), w.PlaceFrom.String()
		}
		if w.Adapters.Known() {
			v.Adapters = append([]string{}, w.Adapters.Names()...)
		}
		health := r.Load.HealthView()
		v.Health, v.Why = health.State.String(), health.Why
		v.Asleep = health.Asleep
		if !health.Since.IsZero() {
			v.HealthSince = &health.Since
		}
		if !health.Probed.IsZero() {
			v.Probed = &health.Probed
		}

		if !w.Unleased.IsZero() {
			v.UnleasedSince = &w.Unleased
		}
		if report, ok := r.Load.LastReport(); ok {
			v.ReportedRunning, v.ReportedWaiting = &report.Running, &report.Waiting
			v.ReportedKVUsage = &report.KVUsage
			v.ReportedStepTokens = report.StepTokens
		}
		if caches != nil {
			v.CacheState, v.CacheReason = caches.State(r).String(), caches.Reason(r).String()
			if health.CachingOff {
				v.CacheState, v.CacheReason = "off", ""
			}
		}
		out = append(out, v)
	}
	return out
}

const fleetHeader = "WORKER\tRANK\tMODEL\tROLE\tSTATE\tHEALTH\tLEASE\tCACHE\tADDRESS\tENGINE\tBLOCK SIZE\tADAPTERS\tEPOCH\tBOOKED\t" +
	"PREFILL TOKENS\tDECODE BLOCKS\tRUNNING\tWAITING\tKV USED\tPLACE\tHEALTH IS KNOWN BY"

// fleetTable returns a row for each rank, with the load as it is now.
func fleetTable(s *fleet.Snapshot, caches *feed.Feed) string {
	return table(fleetHeader, func(row func(...any)) {
		for _, r := range viewRanks(s, caches) {
			running, waiting := any("-"), any("-")
			usage := "-"
			if r.ReportedRunning != nil {
				running, waiting = *r.ReportedRunning, *r.ReportedWaiting
				usage = fmt.Sprintf("%.1f%%", 100**r.ReportedKVUsage)
			}
			row(r.Worker, r.Rank, r.Model, r.Role, r.State, healthText(&r), leaseText(r.UnleasedSince),
				cacheText(r.CacheState, r.CacheReason), r.Address, r.Engine, figureText(r.Figures["block_size"]),
				adaptersText(r.Adapters), r.Epoch, r.BookedRequests, r.BookedPrefillTokens, r.BookedDecodeBlocks,
				running, waiting, usage, placeText(&r), knownBy(&r))
		}
	})
}

// figureText is a figure with its source, and with the configured number if that is another.
func figureText(f figureView) string {
	switch {
	case f.Value == 0 && f.Configured == 0:
		return "-"
	case f.Value == 0:
		return fmt.Sprint(f.Configured)
	case f.Configured != 0 && f.Configured != f.Value:
		return fmt.Sprintf("%d (%s: %d)", f.Configured, f.Source, f.Value)
	}
	return fmt.Sprintf("%d (%s)", f.Value, f.Source)
}

// placeText is the place of a worker with its source.
func placeText(r *rankView) string {
	if r.Place == "" {
		return "-"
	}
	return r.Place + " (" + r.PlaceSource + ")"
}

// adaptersText returns the number of an engine's adapters, or a dash if it does not list them.
func adaptersText(names []string) any {
	if names == nil {
		return "-"
	}
	return len(names)
}

// healthText is the health of a worker and when it began. A worker that its agent reports as not ready is not judged.
func healthText(r *rankView) string {
	if r.Probed == nil && r.State != fleet.Ready.String() {
		return "-"
	}
	if r.Asleep {
		return "asleep"
	}
	if r.HealthSince == nil {
		return r.Health
	}
	return r.Health + " since " + r.HealthSince.Format("15:04:05")
}

// knownBy has the sources of a worker's health: its agent, the last probe of this process, and requests; and the evidence of
// its last change.
func knownBy(r *rankView) string {
	text := "requests"
	if r.Probed != nil {
		text = "probe at " + r.Probed.Format("15:04:05") + ", " + text
	}
	if r.leased {
		text = "agent, " + text
	}
	if r.Why != "" {
		text += ": " + r.Why
	}
	return text
}

func leaseText(unleased *time.Time) string {
	if unleased == nil {
		return "-"
	}
	return "unleased since " + unleased.Format("15:04:05")
}

func cacheText(state, reason string) any {
	if reason != "" {
		return state + " (" + reason + ")"
	}
	return orDash(state)
}

// coverageText returns a line about the room of the index; empty in a process without one.
func coverageText(c *kvindex.Coverage) string {
	if c == nil {
		return ""
	}

	text := fmt.Sprintf("\nindex: room for %d blocks; the caches of the fleet hold %d", c.Room, c.Pairs)
	if c.UnknownRanks > 0 {
		text += fmt.Sprintf(", and those of %d ranks of unknown size", c.UnknownRanks)
	}
	if c.NeededBytes > c.MaxBytes {
		const mib = 1 << 20
		text += fmt.Sprintf("; set index.maxBytes to %.0f MiB (it is %.0f)", math.Ceil(float64(c.NeededBytes)/mib), float64(c.MaxBytes)/mib)
	}
	return text + "\n"
}
