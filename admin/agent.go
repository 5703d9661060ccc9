package admin

import (
	"fmt"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/workeragent"
)

// engineView is one engine of /debug/agent.
type engineView struct {
	Worker string `json:"worker"`
	Kind   string `json:"kind"`
	// PID is 0 while no process runs.
	PID          int     `json:"pid"`
	Epoch        uint64  `json:"epoch"`
	Address      string  `json:"address"`
	State        string  `json:"state"`
	StateSeconds float64 `json:"state_seconds"`
	DownSeconds  float64 `json:"down_seconds"`
	Failures     uint64  `json:"failures"`
	// Null if the engine has not failed yet.
	SecondsSinceFailure *float64 `json:"seconds_since_failure"`
	LastError           string   `json:"last_error"`
	// Remedy is advice on what to change, if the output of the failed engine shows a common mistake.
	Remedy string `json:"remedy,omitempty"`
	// LastLines is the end of the output of the failed engine.
	LastLines []string `json:"last_lines,omitempty"`
	LastLine  string   `json:"last_line"`
	// Phase is the progress of a starting engine in loading, if its output shows it.
	Phase string           `json:"phase,omitempty"`
	Ranks []engineRankView `json:"ranks"`
}

// engineRankView is one rank of an engine of /debug/agent.
type engineRankView struct {
	Rank int `json:"rank"`
	// CacheState is the state of the agent's mirror of the cache.
	CacheState  string `json:"cache_state"`
	Reason      string `json:"reason,omitempty"`
	Next        uint64 `json:"next"`
	Blocks      int    `json:"blocks"`
	PastBatches int    `json:"past_batches"`
	PastBytes   int    `json:"past_bytes"`

	// Null until the engine is ready.
	Source *kvsource.Stats `json:"source"`
}

func viewEngines(engines []workeragent.EngineStatus) []engineView {
	out := []engineView{}
	for i := range engines {
		e := &engines[i]
		v := engineView{
			Worker: e.Worker, Kind: e.Kind, PID: e.PID, Epoch: e.Epoch, Address: e.Address,
			State: engineState(e), StateSeconds: e.InState.Seconds(), DownSeconds: e.Unready.Seconds(),
			Failures: e.Failures, LastError: e.LastError, LastLine: e.LastLine,
			Remedy: e.Remedy, LastLines: e.LastLines, Phase: e.Phase, Ranks: []engineRankView{},
		}
		if e.Failures > 0 {
			ago := e.SinceFailure.Seconds()
			v.SecondsSinceFailure = &ago
		}
		for j := range e.Ranks {
			v.Ranks = append(v.Ranks, viewEngineRank(&e.Ranks[j]))
		}
		out = append(out, v)
	}
	return out
}

// engineState returns the state of the engine's worker, or that it is stopped.
func engineState(e *workeragent.EngineStatus) string {
	if e.Stopped {
		return "stopped by plan"
	}
	return e.State.String()
}

func viewEngineRank(r *workeragent.RankStatus) engineRankView {
	return engineRankView{
		Rank: r.Rank, CacheState: r.State.String(), Reason: r.Reason.String(), Next: r.Next, Blocks: r.Blocks,
		PastBatches: r.PastBatches, PastBytes: r.PastBytes, Source: r.Source,
	}
}

// engineTables returns the engines, the ranks whose events are relayed, and the last errors.
func engineTables(engines []workeragent.EngineStatus) string {
	text := table("WORKER\tKIND\tPID\tEPOCH\tADDRESS\tSTATE\tFOR\tDOWN FOR\tFAILURES", func(row func(...any)) {
		for i := range engines {
			e := &engines[i]
			row(e.Worker, e.Kind, orDash(e.PID), orDash(e.Epoch), orDash(e.Address), engineState(e),
				seconds(e.InState), seconds(e.Unready), e.Failures)
		}
	})

	text += "\n" + table("WORKER\tRANK\tCACHE\tREASON\tNEXT\tBLOCKS\tPAST\tPAST BYTES\tCONNECTED\tWAITING\tMALFORMED\tGAPS\tUNRECOVERED\t"+
		"CONNECTS\tRESTARTS", func(row func(...any)) {
		for i := range engines {
			for j := range engines[i].Ranks {
				row(rankCells(engines[i].Worker, &engines[i].Ranks[j])...)
			}
		}
	})
	return text + lastErrors(engines)
}

// rankCells returns the cells of one rank. The cells of its source are dashes before the engine is ready.
func rankCells(worker string, r *workeragent.RankStatus) []any {
	cells := []any{worker, r.Rank, r.State, orDash(r.Reason.String()), r.Next, r.Blocks, r.PastBatches, r.PastBytes}
	if s := r.Source; s != nil {
		return append(cells, s.Connected, s.Waiting, s.Malformed, s.Gaps, s.Unrecovered, s.Connects, s.Restarts)
	}
	return append(cells, "-", "-", "-", "-", "-", "-", "-")
}

// failedOutput returns what to change, and the end of the output of an engine that has failed.
func failedOutput(e *workeragent.EngineStatus) (text string) {
	if e.Remedy != "" {
		text += "  remedy: " + e.Remedy + "\n"
	}
	for _, line := range e.LastLines {
		text += "  | " + strconv.Quote(line) + "\n"
	}
	return text
}

// lastErrors lists the errors of engines and sources. They quote the output of engines.
func lastErrors(engines []workeragent.EngineStatus) string {
	var text string
	for i := range engines {
		e := &engines[i]
		if e.Phase != "" {
			text += fmt.Sprintf("\n%s is loading: %s\n", e.Worker, strconv.Quote(e.Phase))
		}
		if e.Failures > 0 {
			text += fmt.Sprintf("\n%s failed %s ago: %s; last line %s\n",
				e.Worker, seconds(e.SinceFailure), e.LastError, strconv.Quote(e.LastLine))
			text += failedOutput(e)
		}
		for _, r := range e.Ranks {
			if r.Source != nil && r.Source.LastError != "" {
				text += fmt.Sprintf("\nevents of %s/%d: %s\n", e.Worker, r.Rank, strconv.Quote(r.Source.LastError))
			}
		}
	}
	return text
}

// orDash returns a value, or a dash for the zero value.
func orDash[T comparable](v T) any {
	var zero T
	if v == zero {
		return "-"
	}
	return v
}

func seconds(d time.Duration) string { return d.Round(time.Second).String() }
