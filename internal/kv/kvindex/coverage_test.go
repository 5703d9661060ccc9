package kvindex

import (
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/race"
)

// TestCoverage compares the room of an index with the caches of a fleet. A worker without a size is counted apart.
func TestCoverage(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	for _, w := range []fleet.Worker{
		{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 2, Blocks: 10_000},
		{Name: "b", Model: "m", Address: "10.0.0.2:80", Ranks: 1, Blocks: 20_000},
		{Name: "c", Model: "m", Address: "10.0.0.3:80", Ranks: 3},
	} {
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}

	small := New(Config{MaxBytes: 1 << 20}).Coverage(f.Snapshot())
	if small.Pairs != 40_000 || small.UnknownRanks != 3 || small.Room != 19_114 || small.MaxBytes != 1<<20 {
		t.Errorf("coverage %+v", small)
	}
	if s := small.Share(); s < 0.477 || s > 0.478 {
		t.Errorf("share %g", s)
	}
	enough := New(Config{MaxBytes: small.NeededBytes}).Coverage(f.Snapshot())
	if enough.Share() != 1 || enough.Room < 40_000 || enough.Room > 40_001 {
		t.Errorf("with the bytes that are needed: %+v", enough)
	}
}

// TestRoomIsThere: the index really holds the number of blocks for which it has room, without an eviction.
func TestRoomIsThere(t *testing.T) {
	race.Skip(t)
	x := New(Config{MaxBytes: 8 << 20})
	room := int(x.Coverage(&fleet.Snapshot{}).Room)
	for i := range room / 64 {
		blocks, hashes := prompt(uint64(i), 64)
		x.Store(fleet.RankID(i%4), fleet.Device, Chain{Hashes: hashes, Blocks: blocks})
	}

	if s := x.Stats(); s.Evicted > 0 || s.Pairs < int64(room-64) {
		t.Errorf("%d of %d pairs are stored, and %d were evicted", s.Pairs, room, s.Evicted)
	}
}
