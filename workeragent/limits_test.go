package workeragent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
)

// TestLimitsOfAnEngine: the context length and the capacity of the cache are those that a launched vLLM reports. A capacity
// that the launch sets stays.
func TestLimitsOfAnEngine(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = fmt.Fprint(w, `{"data": [{"max_model_len": 4096}]}`)
			return
		}
		_, _ = fmt.Fprint(w, "vllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1\n")
	}))
	defer srv.Close()

	for launched, want := range map[int]int{0: 200, 64: 64} {
		s := &supervisor{worker: fleet.Worker{BlockSize: 16, Blocks: launched}}
		probe := engineprobe.New("vllm", srv.Listener.Addr().String())
		s.setLimits(t.Context(), probe)
		probe.Close()
		if w := s.current(); w.Blocks != want || w.MaxModelLen != 4096 {
			t.Errorf("launched with %d blocks: %d blocks, %d tokens", launched, w.Blocks, w.MaxModelLen)
		}
	}
}
