package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

func newDrains() *Drains {
	return NewDrains(fleet.New(fleet.Hooks{}), slog.New(slog.DiscardHandler))
}

// TestDrainsAreShared: two processes exchange orders, of which the later one counts. One that starts later gets them, also after the first
// ones have ended.
func TestDrainsAreShared(t *testing.T) {
	b := testkit.Bus(t)
	var all sync.WaitGroup
	run := func(d *Drains) (stop func()) {
		ctx, stop := context.WithCancel(context.Background())
		all.Go(func() { d.Run(ctx, b) })
		t.Cleanup(stop)
		return stop
	}
	defer all.Wait()
	await := func(d *Drains, want string) {
		t.Helper()
		testkit.Eventually(t, want, func() bool {
			text := ""
			for _, x := range d.Active() {
				text += x.Name + " "
			}
			return text == want
		})
	}

	one, two := newDrains(), newDrains()
	stopOne, stopTwo := run(one), run(two)
	now := time.Now()
	if err := one.Set("n", true, now); err != nil {
		t.Fatal(err)
	}
	await(two, "n ")
	if err := two.Set("w", true, now); err != nil {
		t.Fatal(err)
	}
	if err := two.Set("n", false, now.Add(-time.Hour)); err != nil { // by a clock that is behind
		t.Fatal(err)
	}
	await(one, "w ")

	three := newDrains()
	stopThree := run(three)
	await(three, "w ")
	stopOne()
	stopTwo()
	four := newDrains()
	defer run(four)()
	await(four, "w ")
	stopThree()
}

// TestDrainsAreBounded: a process keeps so many orders, and refuses names that no worker can have.
func TestDrainsAreBounded(t *testing.T) {
	d := newDrains()
	now := time.Now()
	for i := range bus.MaxDrains {
		if err := d.Set(fmt.Sprint("w", i), true, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Set("more", true, now); err == nil {
		t.Error("an order beyond the bound is accepted")
	}
	if err := d.Set("w0", false, now); err != nil || len(d.Active()) != bus.MaxDrains-1 {
		t.Errorf("%v, %d drains", err, len(d.Active()))
	}
	if err := d.Set("a/b", true, now); err == nil {
		t.Error("a name that no worker has is accepted")
	}

	// Ends of drains are forgotten after a day.
	d.merge([]bus.Drain{{Name: "x", At: now.Add(-2 * keepOrders), Over: true}})
	if n := len(d.all()); n != bus.MaxDrains {
		t.Errorf("%d orders", n)
	}
}
