package engineprobe

import (
	"cmp"
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/engines"
)

// pages are shortened metrics pages of engines.
var pages = map[string]string{
	"vllm": `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 3.0
vllm:num_requests_running{engine="1",model_name="qwen"} 2.0
vllm:num_requests_waiting{engine="0",model_name="qwen"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="qwen",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="qwen"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="qwen"} 0.75
vllm:num_requests_running_total 99
vllm:prefix_cache_queries_total{engine="0",model_name="qwen"} 5.0e+09
vllm:prefix_cache_queries_total{engine="1",model_name="qwen"} 1000
vllm:prefix_cache_hits_total{engine="0",model_name="qwen"} 3.0e+09
vllm:external_prefix_cache_hits_total{engine="0",model_name="qwen"} 16
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="qwen"} 7
vllm:inter_token_latency_seconds_count{engine="0",model_name="qwen"} 8
vllm:inter_token_latency_seconds_sum{engine="0",model_name="qwen"} 0.25
vllm:inter_token_latency_seconds_created{engine="0",model_name="qwen"} 1.7e+09
`,
	"llamacpp": `llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:kv_cache_usage_ratio 0.5
`,
	"sglang": `sglang:num_running_reqs{model_name="a } b"} 4 1700000000000
sglang:num_queue_reqs{model_name="a } b"} 0
sglang:token_usage{model_name="a } b"} 1.5
sglang:inter_token_latency_seconds_count{model_name="a } b"} 4
sglang:inter_token_latency_seconds_sum{model_name="a } b"} 0.5
`,
	// The metrics are those of TensorRT-LLM's source (tensorrt_llm/metrics/collector.py, at /prometheus/metrics); it was not run.
	"trtllm": `trtllm_num_requests_running{engine_type="trtllm",model_name="qwen"} 6.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="qwen"} 2.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="qwen"} 0.5
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="qwen"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="qwen"} 32.0
trtllm_time_per_output_token_seconds_count{engine_type="trtllm",model_name="qwen"} 9.0
trtllm_time_per_output_token_seconds_sum{engine_type="trtllm",model_name="qwen"} 0.1
`,
	"sim": "vllm:num_requests_running 1\n",
	// From ai-dynamo 1.6.1 with one mocker: five requests, of which two at a time are computed.
	"dynamo": `dynamo_frontend_active_requests{model="org/tiny"} 5
dynamo_frontend_cached_tokens_sum{model="org/tiny"} 0
dynamo_frontend_inflight_requests{model="org/tiny"} 5
dynamo_frontend_input_sequence_tokens_sum{model="org/tiny"} 740
dynamo_frontend_inter_token_latency_seconds_sum{model="org/tiny"} 1.534948064
dynamo_frontend_inter_token_latency_seconds_count{model="org/tiny"} 256
dynamo_frontend_model_kv_cache_block_size{model="org/tiny"} 64
dynamo_frontend_model_total_kv_blocks{model="org/tiny"} 4096
dynamo_frontend_queued_requests{model="org/tiny"} 3
`,
}

func serve(t *testing.T, h http.HandlerFunc) string {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// TestStepTokens: speculative decoding is read from vLLM's counters and from SGLang's mean. An engine without it has none.
func TestStepTokens(t *testing.T) {
	for _, c := range []struct {
		kind, page string
		want       float64
	}{
		{"vllm", "vllm:num_requests_running 1\nvllm:spec_decode_num_drafts_total 40\nvllm:spec_decode_num_accepted_tokens_total 60\n", 2.5},
		{"vllm", "vllm:num_requests_running 1\nvllm:spec_decode_num_drafts_total 0\nvllm:spec_decode_num_accepted_tokens_total 0\n", 0},
		{"vllm", "vllm:num_requests_running 1\nvllm:spec_decode_num_drafts_total 1\nvllm:spec_decode_num_accepted_tokens_total 1e9\n", 1000},
		{"sglang", "sglang:num_running_reqs 1\nsglang:spec_accept_length 3.25\n", 3.25},
		{"trtllm", "trtllm_num_requests_running 1\n", 0},
	} {
		l, err := parse(&engines.Of(c.kind).Metrics, strings.NewReader(c.page))
		if err != nil || l.StepTokens != c.want {
			t.Errorf("%s: %g tokens, %v; want %g", c.kind, l.StepTokens, err, c.want)
		}
	}
}

// TestAsleep reads the state of sleep of all ranks.
func TestAsleep(t *testing.T) {
	for page, want := range map[string]bool{
		"": false,
		`vllm:engine_sleep_state{sleep_state="awake"} 1` + "\n" + `vllm:engine_sleep_state{sleep_state="discard_all"} 0`:                 false,
		`vllm:engine_sleep_state{sleep_state="weights_offloaded"} 1` + "\n" + `vllm:engine_sleep_state{sleep_state="awake"} 0`:           true,
		`vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1` + "\n" + `vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0`: true,
	} {
		l, err := parse(&engines.VLLM.Metrics, strings.NewReader("vllm:num_requests_running 1\n"+page+"\n"))
		if err != nil || l.Asleep != want {
			t.Errorf("%s\nasleep %v, %v", page, l.Asleep, err)
		}
	}
}

func TestLoadOfEachEngineKind(t *testing.T) {
	want := map[string]Load{
		"vllm":     {Running: 5, Waiting: 7, KVUsage: 0.75, PrefixQueries: 5_000_001_000, PrefixHits: 3_000_000_016, Gaps: 8, GapTime: 250 * time.Millisecond},
		"llamacpp": {Running: 2, Waiting: 1, KVUsage: 0.5}, "sim": {Running: 1},
		"sglang": {Running: 4, KVUsage: 1, Gaps: 4, GapTime: 500 * time.Millisecond},
		"trtllm": {Running: 6, Waiting: 2, KVUsage: 0.5, Capacity: 32_000, BlockSize: 32},
		"dynamo": {Running: 2, Waiting: 3, Gaps: 256, GapTime: 1534948064, Capacity: 262_144, BlockSize: 64},
	}
	for kind, page := range pages {
		p := New(kind, serve(t, func(w http.ResponseWriter, r *http.Request) {
			if path := map[string]string{"trtllm": "/prometheus/metrics"}[kind]; r.URL.Path != cmp.Or(path, "/metrics") {
				http.NotFound(w, r)
			}
			_, _ = io.WriteString(w, page)
		}), nil)
		got, err := p.Load(t.Context())
		p.Close()
		if err != nil || !reflect.DeepEqual(got, want[kind]) || !p.ReadsLoad() {
			t.Errorf("%s: %+v, %v; want %+v", kind, got, err, want[kind])
		}
	}
	if New("exec", "127.0.0.1:1", nil).ReadsLoad() {
		t.Error("the metrics of an engine of kind exec are unknown")
	}
}

func TestLoadErrors(t *testing.T) {
	for _, c := range []struct {
		name, want string
		handle     http.HandlerFunc
	}{
		{"another program's metrics", "probe /metrics: the page has no vllm:num_requests_running", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "hello 1\n")
		}},
		{"no metrics", `probe /metrics: read metrics: text format parsing error in line 1: expected float as value, got ""`,
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }},
		{"no page", "probe /metrics: status 404", http.NotFound},
		{"a page that breaks off", "probe /metrics: unexpected EOF", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, pages["vllm"])
		}},
		{"a line without end", "probe /metrics: bufio.Scanner: token too long", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(slices.Repeat([]byte("x"), 2<<20))
		}},
	} {
		p := New("vllm", serve(t, c.handle), nil)
		got, err := p.Load(t.Context())
		p.Close()
		if err == nil || err.Error() != c.want || !reflect.DeepEqual(got, Load{}) {
			t.Errorf("%s: %+v, %v; want %s", c.name, got, err, c.want)
		}
	}
}

func TestHealthyFollowsTheStatus(t *testing.T) {
	status := http.StatusServiceUnavailable
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	p := New("sim", address, nil)
	if err := p.Healthy(t.Context()); err == nil || err.Error() != "probe /health: status 503" {
		t.Errorf("loading: %v", err)
	}
	status = http.StatusOK
	if err := p.Healthy(t.Context()); err != nil {
		t.Errorf("serving: %v", err)
	}
	p.Close()

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	mute := New("sim", ln.Addr().String(), nil)
	defer mute.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := mute.Healthy(ctx); err == nil {
		t.Error("an engine that never answers is healthy")
	}
}

// TestProbeKeepsOneConnection checks that a probe uses one connection for all its questions, and that
// nothing runs after it is closed.
func TestProbeKeepsOneConnection(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	peers := map[string]bool{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peers[r.RemoteAddr] = true
		_, _ = io.WriteString(w, pages["vllm"])
	}))
	defer srv.Close()
	p := New("vllm", srv.Listener.Addr().String(), nil)
	defer p.Close()
	for range 10 {
		if _, err := p.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Healthy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(peers) != 1 {
		t.Errorf("%d connections", len(peers))
	}
}

// FuzzLoad checks that any page gives an error or a load within its bounds, and that neither the order
// of the lines nor unrelated lines matter.
func FuzzLoad(f *testing.F) {
	for _, kind := range slices.Sorted(maps.Keys(pages)) {
		f.Add(pages[kind], uint64(1))
	}
	f.Add("vllm:num_requests_running NaN\nvllm:num_requests_running -1\nvllm:num_requests_running 1e300\n", uint64(2))
	f.Add("vllm:num_requests_running{a=\"}\"} 0x10\n", uint64(3))
	f.Add("vllm:num_requests_running{\nvllm:num_requests_running{}\n", uint64(4))
	f.Add("vllm:num_requests_running\t3\r\nvllm:kv_cache_usage_perc 0.5\r\n", uint64(5))
	f.Fuzz(func(t *testing.T, page string, seed uint64) {
		got, err := parse(&engines.VLLM.Metrics, strings.NewReader(page))
		if err != nil && !reflect.DeepEqual(got, Load{}) {
			t.Fatalf("both %+v and %v", got, err)
		}
		if got.Running < 0 || got.Waiting < 0 || !(got.KVUsage >= 0 && got.KVUsage <= 1) {
			t.Fatalf("%+v is out of bounds", got)
		}
		lines := append(strings.Split(page, "\n"), "# vllm:num_requests_running 5", "vllm:other{x=\"vllm:num_requests_running 5\"} 5", "")
		rng := rand.New(rand.NewPCG(seed, 0))
		rng.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		again, againErr := parse(&engines.VLLM.Metrics, strings.NewReader(strings.Join(lines, "\n")))
		if !reflect.DeepEqual(again, got) || (err == nil) != (againErr == nil) {
			t.Fatalf("%+v, %v in another order: %+v, %v", got, err, again, againErr)
		}
	})
}

// TestProbeOfAWrongAddress returns an error and sends nothing.
func TestProbeOfAWrongAddress(t *testing.T) {
	probe := New("sim", "not an address", nil)
	defer probe.Close()

	if err := probe.Healthy(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "probe /health: ") {
		t.Errorf("error %v", err)
	}
}

// TestCapacity reads the size of the KV cache of each kind of engine, as far as it is reported.
func TestCapacity(t *testing.T) {
	for _, c := range []struct {
		kind, page string
		want       int
	}{
		{"vllm", `vllm:cache_config_info{block_size="32",num_gpu_blocks="384",engine="0"} 1.0`, 12_288},
		{"vllm", `vllm:cache_config_info{block_size="32",num_gpu_blocks="384",kv_cache_size_tokens="12000"} 1.0`, 12_000},
		{"two ranks", "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"10\",engine=\"0\"} 1.0\n" +
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9\",engine=\"1\"} 1.0", 144},
		{"not known yet", `vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0`, 0},
		{"too large", `vllm:cache_config_info{block_size="9999999",num_gpu_blocks="999999999999"} 1.0`, 0},
		{"negative", `vllm:cache_config_info{block_size="-16",num_gpu_blocks="-10"} 1.0`, 0},
		{"dynamo", "dynamo_frontend_model_total_kv_blocks{model=\"a\"} 10\ndynamo_frontend_model_total_kv_blocks{model=\"b\"} 10\n" +
			"dynamo_frontend_model_kv_cache_block_size{model=\"a\"} 64\ndynamo_frontend_model_kv_cache_block_size{model=\"b\"} 64", 640},
		{"dynamo", "dynamo_frontend_model_total_kv_blocks 1e15\ndynamo_frontend_model_kv_cache_block_size 64", 0},
		{"dynamo", "dynamo_frontend_model_total_kv_blocks 10", 0},
		{"sglang", "sglang:max_total_num_tokens{tp_rank=\"0\"} 471258\nsglang:max_total_num_tokens{tp_rank=\"1\"} 471258", 471_258},
	} {
		names, page := &engines.VLLM.Metrics, "vllm:num_requests_running 0\n"
		if c.kind == "sglang" || c.kind == "dynamo" {
			names = &engines.Of(c.kind).Metrics
			page = names.Running + " 0\n"
		}
		load, err := parse(names, strings.NewReader(page+c.page+"\n"))
		if err != nil || load.Capacity != c.want {
			t.Errorf("%s: %d tokens, %v; want %d", c.kind, load.Capacity, err, c.want)
		}
	}
}
