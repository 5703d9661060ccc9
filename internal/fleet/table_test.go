package fleet_test

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// TestSnapshotTable: a snapshot prints a row for each rank, with the engine's report where there is one.
func TestSnapshotTable(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	for _, w := range []fleet.Worker{
		{Name: "a", Model: "m", Address: "10.0.0.1:80", Engine: "vllm", Ranks: 1, State: fleet.Ready},
		{Name: "b", Model: "m", Address: "10.0.0.2:80", Engine: "sim", Ranks: 1, State: fleet.Down, Role: fleet.Decode},
	} {
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	s := f.Snapshot()
	load := s.Ranks[0].Load
	load.Add(fleet.Amount{Requests: 2, PrefillTokens: 100, DecodeBlocks: 7})
	load.SetReport(fleet.Report{At: time.Unix(1, 0), Running: 1, Waiting: 3, KVUsage: 0.25})
	want := `WORKER  RANK  MODEL  ROLE        STATE  ADDRESS      ENGINE  BOOKED  PREFILL TOKENS  DECODE BLOCKS  RUNNING  WAITING  KV USED
a       0     m      aggregated  ready  10.0.0.1:80  vllm    2       100             7              1        3        25.0%
b       0     m      decode      down   10.0.0.2:80  sim     0       0               0              -        -        -
`
	if got := s.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if w := s.Worker("b"); w == nil || w.State.String() != "down" {
		t.Errorf("worker b is %+v", w)
	}
	if w := s.Worker("c"); w != nil {
		t.Errorf("there is no worker c, and not %+v", w)
	}
}
