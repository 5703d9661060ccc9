package extproc

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/test/testkit"
)

// TestCoverageIsLoggedWhenItChanges: a line at the start, and one for each change by more than a tenth. A warning has
// the bound that would suffice.
func TestCoverageIsLoggedWhenItChanges(t *testing.T) {
	index := kvindex.New(kvindex.Config{MaxBytes: 1 << 20}) // room for 19,114 blocks
	members := fleet.New(fleet.Hooks{})
	var log testkit.Log
	lines := coverageLog{log: log.Logger()}

	for _, step := range []struct {
		blocks int
		want   string // in the new line; empty if there is none
	}{
		{0, "index has room for the caches of the fleet"},
		{19_000, ""},
		{20_000, ""}, // less than a tenth too small
		{40_000, `level=WARN msg="index is too small for the caches of the fleet; the oldest blocks are evicted and not found" ` +
			`fleet_blocks=40000 index_room=19114 unknown_ranks=0 percent=48 max_bytes=1048576 needed_bytes=2194286`},
		{42_000, ""},
		{80_000, "percent=24"},
		{10_000, "index has room for the caches of the fleet"},
	} {
		w := fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Blocks: step.blocks}
		if _, err := members.Put(w); err != nil {
			t.Fatal(err)
		}
		before := log.String()
		lines.observe(index.Coverage(members.Snapshot()))
		added := strings.TrimPrefix(log.String(), before)
		if (added == "") != (step.want == "") || !strings.Contains(added, step.want) {
			t.Errorf("%d blocks: logged %q, want %q", step.blocks, added, step.want)
		}
	}
}
