package xds

import (
	"fmt"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

func TestLeavers(t *testing.T) {
	f, l, now := fleet.New(fleet.Hooks{}), newLeavers(), time.Unix(0, 0)
	put := func(address string, s fleet.State) {
		if _, err := f.Put(fleet.Worker{Name: "w", Model: "m", Address: address, Ranks: 1, State: s}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(after time.Duration, want string) {
		t.Helper()
		now = now.Add(after)
		l.update("m", f.Snapshot().Workers, now)
		left, next := l.now(now)
		if got := fmt.Sprint(left); got != want || next.IsZero() != (len(left) == 0) {
			t.Errorf("left %s, next %v, want %s", got, next, want)
		}
	}
	put("10.0.0.1:1", fleet.Ready)
	expect(0, "[]")
	put("10.0.0.1:2", fleet.Ready) // started again elsewhere
	expect(time.Second, "[{m 10.0.0.1:1}]")
	f.SetState("w", fleet.Down) // it keeps its endpoint
	expect(time.Second, "[{m 10.0.0.1:1}]")
	expect(time.Second, "[]")
	f.Remove("w")
	expect(0, "[{m 10.0.0.1:2}]")
	expect(linger, "[]")
}
