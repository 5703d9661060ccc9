package enginesim

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stator-project/stator/internal/sim/engine"
)

// metrics are the metrics of vLLM that a gateway or an agent reads, with vLLM's names. Each engine has its own
// registry, because tests run several engines in one process.
type metrics struct {
	registry *prometheus.Registry

	// In simulated time, which differs from the client's by at most maxLag.
	firstToken, interToken prometheus.Observer
	endToEnd               prometheus.Observer
	success                map[engine.Reason]prometheus.Counter
	// transferred counts prompt tokens that were fetched from other engines, in two metrics, and expired the leases that ended
	// unused.
	transferred, peers prometheus.Counter
	expired            prometheus.Counter
	tierBytes          prometheus.Counter // read from other engines by p2p
}

// newMetrics returns the metrics of an engine. Buckets and labels are vLLM's.
func newMetrics(s *Sim) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), success: map[engine.Reason]prometheus.Counter{}}
	labels := prometheus.Labels{"model_name": s.cfg.ModelName, "engine": strconv.Itoa(s.cfg.Rank)}
	histogram := func(name, help string, buckets ...float64) prometheus.Observer {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}

	m.firstToken = histogram("vllm:time_to_first_token_seconds", "Time from arrival to the first token.",
		0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
	m.interToken = histogram("vllm:inter_token_latency_seconds", "Time between two tokens of an answer.",
		0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
	m.endToEnd = histogram("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.",
		0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
	counter := func(name, help string, more prometheus.Labels) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
		prometheus.WrapRegistererWith(more, m.registry).MustRegister(c)
		return c
	}
	m.transferred = counter("vllm:prompt_tokens_by_source_total", "Prompt tokens that were fetched from other engines.",
		prometheus.Labels{"source": "external_kv_transfer"})
	m.peers = counter("vllm:prompt_tokens_cached_by_source_total", "Prompt tokens whose KV cache was in another engine.",
		prometheus.Labels{"source": "p2p"})
	m.tierBytes = counter("vllm:kv_offload_tiering_read_bytes_total", "Bytes of KV cache that were read from other engines.",
		prometheus.Labels{"tier": "2:p2p"})
	m.expired = counter("vllm:nixl_num_kv_expired_reqs_total", "Prompts whose blocks were kept for another engine and not fetched.", nil)
	success := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total",
		Help: "Answers by the reason for their end.", ConstLabels: labels},
		[]string{"finished_reason"})

	// Both reasons exist from the start, so that rates can be computed from the first scrape on.
	for _, r := range []engine.Reason{engine.Length, engine.Stop} {
		m.success[r] = success.WithLabelValues(finishReasons[r])
	}
	for state, asleep := range map[string]bool{"awake": false, "weights_offloaded": true} {
		gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "vllm:engine_sleep_state", Help: "1 for the state of the engine, 0 for others.", ConstLabels: labels,
		}, func() float64 {
			if s.sleeping.Load() == asleep {
				return 1
			}
			return 0
		})
		prometheus.WrapRegistererWith(prometheus.Labels{"sleep_state": state}, m.registry).MustRegister(gauge)
	}
	m.registry.MustRegister(success, newStatsCollector(s, labels))
	return m
}

// handler serves the metrics page.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// bytesPerToken is the size of a token's KV cache, in bytes, for a very small model.
const bytesPerToken = 1024

// fetched counts prompt tokens that were fetched from another engine.
func (m *metrics) fetched(tokens int) {
	m.transferred.Add(float64(tokens))
	m.peers.Add(float64(tokens))
}

// finished counts an answer that ended after so many seconds.
func (m *metrics) finished(r engine.Reason, seconds float64) {
	m.endToEnd.Observe(seconds)
	m.success[r].Inc()
}

// statsCollector reads the figures of the core when the metrics page is read.
type statsCollector struct {
	sim    *Sim
	values []statsValue
	info   *prometheus.Desc // of vllm:cache_config_info
	config []string         // its label values
}

// statsValue is one metric that is read from the figures of the core.
type statsValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*engine.Stats) float64
}

// newStatsCollector returns the metrics that show the state of the core. Agents read the running and waiting
// requests and the usage of the cache; the doctor reads the hit rate and the settings.
func newStatsCollector(s *Sim, labels prometheus.Labels) *statsCollector {
	c := &statsCollector{sim: s}
	add := func(kind prometheus.ValueType, name, help string, read func(*engine.Stats) float64) {
		c.values = append(c.values, statsValue{prometheus.NewDesc(name, help, nil, labels), kind, read})
	}
	// Names and meanings are the same as in vLLM, with its units: "perc" is a share from 0 to 1.
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "vllm:num_requests_running", "Requests in the batch.", func(s *engine.Stats) float64 { return float64(s.Running) })
	add(gauge, "vllm:num_requests_waiting", "Requests in the queue.", func(s *engine.Stats) float64 { return float64(s.Waiting) })
	add(gauge, "vllm:kv_cache_usage_perc", "Share of the KV cache in use by requests, 0 to 1.",
		func(s *engine.Stats) float64 { return float64(s.Active) / float64(s.Blocks) })
	add(counter, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
		func(s *engine.Stats) float64 { return float64(s.PrefixQueries) })
	add(counter, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
		func(s *engine.Stats) float64 { return float64(s.PrefixHits) })
	add(counter, "vllm:prompt_tokens_total", "Prompt tokens computed.", func(s *engine.Stats) float64 { return float64(s.PromptTokens) })
	add(counter, "vllm:generation_tokens_total", "Tokens emitted.", func(s *engine.Stats) float64 { return float64(s.GenerationTokens) })
	add(counter, "vllm:num_preemptions_total", "Requests preempted.", func(s *engine.Stats) float64 { return float64(s.Preemptions) })

	if k := s.kv; k != nil {
		tokens := func(blocks *atomic.Uint64) func(*engine.Stats) float64 {
			return func(*engine.Stats) float64 { return float64(blocks.Load()) * float64(s.cfg.Engine.BlockSize) }
		}
		add(counter, "vllm:external_prefix_cache_hits_total", "Prompt tokens loaded from the KV store.", tokens(&k.loaded))
		add(counter, "vllm:kv_store_written_tokens_total", "Tokens whose blocks were written to the KV store.", tokens(&k.written))
		add(counter, "vllm:kv_store_dropped_tokens_total", "Tokens whose blocks the KV store had no room for.", tokens(&k.dropped))
		add(counter, "vllm:kv_store_wrong_tokens_total", "Tokens whose blocks came from the KV store with wrong bytes.", tokens(&k.wrong))
	}

	// An engine's configuration is a metric with the value 1 whose labels are the settings. The doctor reads
	// the block size and the hash algorithm there.
	e := s.cfg.Engine
	c.info = prometheus.NewDesc("vllm:cache_config_info", "Configuration of the KV cache, in labels.",
		[]string{"block_size", "num_gpu_blocks", "kv_cache_size_tokens", "enable_prefix_caching", "prefix_caching_hash_algo",
			"hash_block_size"}, labels)
	size := strconv.Itoa(e.BlockSize)
	caching := map[bool]string{false: "True", true: "False"}[s.cfg.NoCaching] // as Python writes them
	c.config = []string{size, strconv.Itoa(e.Blocks), strconv.Itoa(e.Blocks * e.BlockSize), caching, "xxh3", size}
	return c
}

// Describe sends the descriptions.
func (c *statsCollector) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.values {
		out <- v.desc
	}
	out <- c.info
}

// Collect reads the figures once, so that all values are of the same moment.
func (c *statsCollector) Collect(out chan<- prometheus.Metric) {
	stats := c.sim.engineStats()
	for _, v := range c.values {
		out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.read(&stats))
	}
	out <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, c.config...)
}
