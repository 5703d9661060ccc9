package feed

import (
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// TestRecordOfALaterOwnerStays: a message of a worker that has left the fleet does not replace the record of the
// rank that has its ID now.
func TestRecordOfALaterOwnerStays(t *testing.T) {
	var f *Feed
	members := fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { f.RankGone(id) }})
	f = New(Config{}, members, kvindex.New(kvindex.Config{}))
	put := func(name string) fleet.Rank {
		if _, err := members.Put(fleet.Worker{Name: name, Model: "m", Address: "10.0.0.1:80", Ranks: 1}); err != nil {
			t.Fatal(err)
		}
		m, _ := members.Snapshot().Rank(name, 0)
		return m
	}

	earlier := put("a")
	members.Remove("a")
	later := put("b")
	if earlier.ID != later.ID {
		t.Fatalf("the IDs are %d and %d", earlier.ID, later.ID)
	}
	record := f.record(later)
	if f.record(earlier) != nil || f.existing(later) != record {
		t.Error("the record of the later owner was replaced")
	}
}
