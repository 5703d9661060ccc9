package route_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// dated is a model whose prompt is the date and one medium, as the body names it.
type dated struct{ told []time.Time }

func (m *dated) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	m.told = append(m.told, dst.Now)
	dst.Tokens = append(dst.Tokens[:0], 1, 2, 3, 4)
	dst.Media = append(dst.Media[:0], [16]byte{byte(len(req.Model))})
	dst.Total, dst.Prompts = 4, 1
	return nil
}

// Templates get the time of the decision, and prompts with other media share no blocks
// although their tokens are equal.
func TestPromptsAreToldTheTimeAndKeptApartByMedia(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	if _, err := f.Put(fleet.Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	m, now := &dated{}, time.Unix(1_000_000, 0)
	r := route.New(route.Config{}, f, kvindex.New(kvindex.Config{MaxBytes: 1 << 20}))
	if err := r.SetModels(map[string]*serving.Config{
		"m": {Prompt: m, Pool: "m", BlockSize: 4}, "mm": {Prompt: m, Pool: "m", BlockSize: 4},
	}); err != nil {
		t.Fatal(err)
	}
	first := map[string]uint64{}
	for _, model := range []string{"m", "mm"} {
		d := r.Decide(&request.Request{Known: true, Parsed: &prompt.Request{Model: model}}, now)
		if d.Outcome != decision.Picked {
			t.Fatal(d)
		}
		r.End(d.ID, now)
		first[model] = d.First
	}
	if first["m"] == first["mm"] {
		t.Error("two images are one block")
	}
	if got := fmt.Sprint(m.told[0].Equal(now), m.told[1].Equal(now)); got != "true true" {
		t.Errorf("told %v", m.told)
	}
}
