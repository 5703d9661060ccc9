package route_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route"
)

// A decision's promise is reported when its request has ended regularly, and only then.
func TestServed(t *testing.T) {
	x, got := kvindex.New(kvindex.Config{}), []string{}
	r := route.New(route.Config{
		Served: func(rank fleet.Rank, decided time.Time, prompt, cached int) {
			got = append(got, fmt.Sprintf("%s at %d: %d of %d", rank.Worker.Name, decided.Unix()-start.Unix(), cached, prompt))
		},
	}, newFleet(t, x, 1), x)
	if err := r.SetModels(map[string]*route.ModelConfig{"sim": {Prompt: quads{}}}); err != nil {
		t.Fatal(err)
	}
	req, _ := body(400)
	first := r.Decide(req, start)
	second := r.Decide(req, start.Add(time.Second))
	r.Decide(req, start.Add(2*time.Second))
	r.End(second.ID, start)
	r.End(first.ID, start)
	r.RankGone(0)
	name := first.Worker
	want := []string{name + " at 1: 96 of 100", name + " at 0: 0 of 100"}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}
