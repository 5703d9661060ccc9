package workeragent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// TestLimitsOfAnEngine: the agent takes the context length, the block size and the capacity of the cache from the report of a
// launched vLLM. A capacity that the launch sets stays.
func TestLimitsOfAnEngine(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = fmt.Fprint(w, `{"data": [{"max_model_len": 4096}]}`)
			return
		}
		_, _ = fmt.Fprint(w, "vllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1\n")
	}))
	defer srv.Close()

	for launched, want := range map[int]int{0: 100, 64: 64} {
		s := &supervisor{worker: fleet.Worker{BlockSize: 16, Blocks: launched}}
		probe := engineprobe.New("vllm", srv.Listener.Addr().String(), nil)
		s.setLimits(t.Context(), probe)
		probe.Close()
		if w := s.current(); w.Blocks != want || w.BlockSize != 32 || w.MaxModelLen != 4096 {
			t.Errorf("launched with %d blocks: %d blocks of %d, %d tokens", launched, w.Blocks, w.BlockSize, w.MaxModelLen)
		}
	}
}

// TestAdaptersOfAnEngine: the lease is renewed when the engine lists other adapters, and only then. An answer that is none
// changes nothing.
func TestAdaptersOfAnEngine(t *testing.T) {
	var answer atomic.Value
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, answer.Load()) }))
	defer srv.Close()
	s := newSupervisor(engine.Launch{Name: "w"}, &Agent{cfg: Config{Log: new(testkit.Log).Logger()}})
	probe := engineprobe.New("vllm", srv.Listener.Addr().String(), nil)
	defer probe.Close()

	const base, poet = `{"id": "m", "parent": null}`, `{"id": "poet", "parent": "m"}`
	for _, c := range []struct {
		answer  string
		want    fleet.Adapters
		renewed int
	}{
		{`{"data": [` + base + `]}`, "\n", 1},
		{`{"data": [` + base + `]}`, "\n", 0},
		{`{"data": [` + base + `, ` + poet + `]}`, "\npoet\n", 1},
		{`loading`, "\npoet\n", 0},
		{`{"data": [` + base + `]}`, "\n", 1},
	} {
		answer.Store(c.answer)
		s.followAdapters(t.Context(), probe)
		if got := s.current().Adapters; got != c.want || len(s.changed) != c.renewed {
			t.Errorf("%s: adapters %q, renewed %d times; want %q, %d", c.answer, got, len(s.changed), c.want, c.renewed)
		}
		if len(s.changed) > 0 {
			<-s.changed
		}
	}
}
