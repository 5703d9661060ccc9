package conversations

import (
	"slices"
	"testing"

	"github.com/stator-project/stator/internal/trace"
)

// TestRows checks that a generated trace is the same for the same seed, and that about two fifths of
// its blocks could be reused.
func TestRows(t *testing.T) {
	rows := Rows(2000, 2)
	seen := map[uint64]bool{}
	reused, blocks := 0, 0
	for i, row := range rows {
		if row.Input != trace.MooncakeBlock*len(row.HashIDs) || row.Output < 1 || i > 0 && row.Timestamp <= rows[i-1].Timestamp {
			t.Fatalf("row %d: %+v", i, row)
		}
		for _, id := range row.HashIDs {
			blocks++
			if seen[id] {
				reused++
			}
			seen[id] = true
		}
	}
	if share := float64(reused) / float64(blocks); share < 0.3 || share > 0.5 {
		t.Errorf("%.3f of the blocks could be reused", share)
	}
	if again := Rows(2000, 2); !slices.EqualFunc(rows, again, func(a, b trace.MooncakeRow) bool { return slices.Equal(a.HashIDs, b.HashIDs) }) {
		t.Error("two traces of one seed differ")
	}

	next := List(rows)
	arrivals := 0
	for {
		a, ok, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if len(a.Prompt.Append(nil)) != rows[arrivals].Input {
			t.Fatalf("row %d has another length", arrivals)
		}
		arrivals++
	}
	if arrivals != len(rows) {
		t.Errorf("%d arrivals", arrivals)
	}
}
