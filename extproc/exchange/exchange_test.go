package exchange

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// letters is a model whose tokens are the bytes of a prompt.
type letters struct{}

func (letters) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	for i := range req.Prompts {
		for _, c := range []byte(req.Prompts[i].Text) {
			dst.Tokens = append(dst.Tokens, uint32(c))
		}
	}
	dst.Total = len(dst.Tokens)
	return nil
}

// newService returns a service with a real router over two workers of one model, which change each may change.
func newService(t testing.TB, change ...func(*fleet.Worker)) (*Service, *route.Router) {
	f := fleet.New(fleet.Hooks{})
	router := route.New(route.Config{Seed: 1}, f, kvindex.New(kvindex.Config{}))
	for i := range 2 {
		w := fleet.Worker{Name: fmt.Sprintf("w%d", i+1), Model: "sim", Address: fmt.Sprintf("10.0.0.%d:8000", i+1), Ranks: 1, State: fleet.Ready}
		for _, c := range change {
			c(&w)
		}
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := router.SetModels(map[string]*serving.Config{"sim": {Prompt: letters{}, BlockSize: 4}}); err != nil {
		t.Fatal(err)
	}
	set := Settings{BodyBytes: 1 << 20, BodiesBytes: 4 << 20, PassPaths: []string{"/*"}, DefaultModel: "sim"}
	return New(set, Config{Router: router, Started: start, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}), router
}

// TestMetricsRegisterOnce: two services must not share a registry.
func TestMetricsRegisterOnce(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the second service registered the same metrics")
		}
	}()
	reg := prometheus.NewRegistry()
	newMetrics(reg, &Budget{}, &Budget{})
	newMetrics(reg, &Budget{}, &Budget{})
}
