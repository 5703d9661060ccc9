package engine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Load is what an engine says of itself.
type Load struct {
	Running, Waiting int     // requests
	KVUsage          float64 // share of the KV cache in use, 0 to 1
	// PrefixQueries and PrefixHits count prompt tokens since the engine started: those it looked
	// up in its cache, and those it found there, on any tier. Both are 0 where it does not say.
	PrefixQueries, PrefixHits uint64
	// Gaps counts the gaps between tokens of answers since the engine started, and GapTime is their
	// sum. Both are 0 where it does not say.
	Gaps    uint64
	GapTime time.Duration
}

// Probe asks one engine over HTTP. Make it with [NewProbe].
type Probe struct {
	base   string
	names  loadNames
	client *http.Client
}

// loadNames are the metrics that say an engine's load.
type loadNames struct{ running, waiting, usage, queries, hits, external, gaps, gapTime string }

// What connectors find is not in vLLM's own hits: external are those.
var vllmLoad = loadNames{
	"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
	"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total",
	"vllm:inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_sum",
}

var loadOf = map[string]loadNames{
	"sim":      vllmLoad,
	"vllm":     vllmLoad,
	"llamacpp": {running: "llamacpp:requests_processing", waiting: "llamacpp:requests_deferred", usage: "llamacpp:kv_cache_usage_ratio"},
	"sglang":   {running: "sglang:num_running_reqs", waiting: "sglang:num_queue_reqs", usage: "sglang:token_usage"},
}

// NewProbe returns a probe of an engine of that kind at ip:port.
func NewProbe(kind, address string) *Probe {
	return &Probe{
		base: "http://" + address, names: loadOf[kind],
		client: &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1}},
	}
}

// Close drops the probe's connection.
func (p *Probe) Close() { p.client.CloseIdleConnections() }

// Healthy is nil when the engine's /health answers 200.
func (p *Probe) Healthy(ctx context.Context) error {
	return p.read(ctx, "/health", func(io.Reader) error { return nil })
}

// ReadsLoad says whether this kind of engine tells its load.
func (p *Probe) ReadsLoad() bool { return p.names.running != "" }

// maxGapSeconds bounds a sum of gaps: a century of a busy engine's.
const maxGapSeconds = 1e9

// maxMetrics bounds what is read of an engine's metrics page.
const maxMetrics = 8 << 20

// Load reads the engine's metrics page.
func (p *Probe) Load(ctx context.Context) (Load, error) {
	var l Load
	err := p.read(ctx, "/metrics", func(r io.Reader) error {
		var err error
		l, err = p.names.parse(io.LimitReader(r, maxMetrics))
		return err
	})
	return l, err
}

func (p *Probe) read(ctx context.Context, path string, use func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection is used again
		_ = resp.Body.Close()
	}()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("probe %s: status %d", path, resp.StatusCode)
	}
	if err := use(resp.Body); err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	return nil
}

// parse finds the load in the text format of Prometheus. Samples of several ranks or models
// are added up; of usages the largest counts.
func (n loadNames) parse(r io.Reader) (Load, error) {
	var l Load
	found := false
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), 1<<20)
	for lines.Scan() {
		name, value, ok := sample(lines.Text())
		if !ok {
			continue
		}
		switch name {
		case n.running:
			l.Running += int(min(value, math.MaxInt32))
			found = true
		case n.waiting:
			l.Waiting += int(min(value, math.MaxInt32))
		case n.usage:
			l.KVUsage = max(l.KVUsage, min(1, value))
		case n.queries:
			l.PrefixQueries += uint64(value)
		case n.hits, n.external:
			l.PrefixHits += uint64(value)
		case n.gaps:
			l.Gaps += uint64(value)
		case n.gapTime:
			l.GapTime += time.Duration(min(value, maxGapSeconds) * float64(time.Second))
		}
	}
	if err := lines.Err(); err != nil {
		return Load{}, err
	}
	if !found {
		return Load{}, fmt.Errorf("the page has no %s", n.running)
	}
	return l, nil
}

// sample splits a line such as name{label="x"} 3 [timestamp]. Negative and broken values
// are not samples of a load.
func sample(line string) (name string, value float64, ok bool) {
	if line == "" || line[0] == '#' {
		return "", 0, false
	}
	name = line
	rest := ""
	if i := strings.IndexAny(line, "{ \t"); i >= 0 {
		name, rest = line[:i], line[i:]
	}
	if strings.HasPrefix(rest, "{") {
		end := strings.LastIndexByte(rest, '}')
		if end < 0 {
			return "", 0, false
		}
		rest = rest[end+1:]
	}
	fields := strings.Fields(rest)
	if name == "" || len(fields) == 0 {
		return "", 0, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	return name, value, err == nil && value >= 0 && value < 1<<53
}
