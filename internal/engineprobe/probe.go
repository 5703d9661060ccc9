package engineprobe

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// Load is an engine's load, as its metrics page reports it.
type Load struct {
	Running, Waiting int     // requests
	KVUsage          float64 // share of the KV cache in use, 0 to 1

	// PrefixQueries and PrefixHits count prompt tokens since the engine started: those it looked
	// up in its cache, and those it found there, on any tier. Both are 0 for an engine that does
	// not report them.
	PrefixQueries, PrefixHits uint64

	// Gaps counts the gaps between tokens of answers since the engine started, and GapTime is their
	// sum. Both are 0 for an engine that does not report them.
	Gaps    uint64
	GapTime time.Duration

	// Capacity is the KV cache of one rank in tokens, and BlockSize the tokens of a block; 0 for an engine that does not report it.
	Capacity, BlockSize int
	// StepTokens is the number of tokens of an answer that a decode step makes in the mean, by speculative decoding: at least 1,
	// and 0 for an engine that does not report it.
	StepTokens float64
	// Tiers are the engine's own behind its cache, sorted by name: of vLLM's OffloadingConnector. They do not belong to a store of
	// this agent.
	Tiers []Tier

	// CachingOff means that the engine reports to have no prefix cache.
	CachingOff bool
	// Asleep means that the engine sleeps: it serves no request, and its cache is empty.
	Asleep bool

	drafts, accepted float64 // vLLM's counters: drafts of a step, and the tokens of them that were accepted
}

// Probe asks one engine over HTTP for its health and its load. Create it with [New]. One
// goroutine at a time may use it.
type Probe struct {
	base   string
	names  *engines.Metrics
	pages  engines.Pages
	client *http.Client
}

// New returns a probe of the engine of that kind, as a worker names it, at ip:port. connections are nil for none with TLS.
func New(kind, address string, connections *enginetls.Client) *Probe {
	const wait = 3 * time.Second
	k := engines.Of(kind)
	return &Probe{
		base: "http://" + address, names: &k.Metrics, pages: k.Pages,
		client: &http.Client{Timeout: wait, Transport: &http.Transport{MaxIdleConnsPerHost: 1, DialContext: connections.Dial(wait)}},
	}
}

// Close drops the probe's connection.
func (p *Probe) Close() { p.client.CloseIdleConnections() }

// Healthy returns nil when the engine's /health answers 200.
func (p *Probe) Healthy(ctx context.Context) error {
	return p.readPage(ctx, "/health", func(io.Reader) error { return nil })
}

// Models reads the engine's list of models.
func (p *Probe) Models(ctx context.Context) (Models, error) {
	var m Models
	err := p.readPage(ctx, "/v1/models", func(r io.Reader) error {
		var err error
		m, err = readModels(r)
		return err
	})
	return m, err
}

// ReadsLoad reports whether the metric names of this kind of engine are known.
func (p *Probe) ReadsLoad() bool { return p.names.Running != "" }

// maxGapSeconds bounds the sum of gaps, because a time.Duration holds 292 years. A busy engine needs
// a century to get here.
const maxGapSeconds = 1e9

// maxMetrics bounds how many bytes of an engine's metrics page are read.
const maxMetrics = 8 << 20

// Load reads the engine's metrics page.
func (p *Probe) Load(ctx context.Context) (Load, error) {
	var l Load
	err := p.readPage(ctx, cmp.Or(p.names.Path, "/metrics"), func(r io.Reader) error {
		var err error
		l, err = parse(p.names, io.LimitReader(r, maxMetrics))
		return err
	})
	return l, err
}

func (p *Probe) readPage(ctx context.Context, path string, use func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}

	resp, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}

	defer func() {
		// Only a connection whose body was read to its end is used again.
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
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

// parse reads the load from a metrics page. An engine with several ranks or models has several samples
// of a name: they are added up, and of usages the largest counts.
func parse(n *engines.Metrics, r io.Reader) (Load, error) {
	page, err := metric.Read(r)
	if err != nil {
		return Load{}, err
	}

	var l Load
	found := false
	for _, s := range page {
		if s.Name == "" || !(s.Value >= 0 && s.Value < maxCount) {
			continue
		}
		found = found || s.Name == n.Running
		l.addSample(n, s)
	}

	if !found {
		return Load{}, fmt.Errorf("the page has no %s", n.Running)
	}
	if n.RunningHasWaiting {
		l.Running = max(0, l.Running-l.Waiting)
	}
	if l.drafts > 0 {
		l.StepTokens = min(1+l.accepted/l.drafts, fleet.MaxStepTokens)
	}
	l.Tiers = readTiers(page)
	l.BlockSize = blockSizeOf(n, page)
	if n.Blocks != "" {
		l.addCapacity(product(least(page, n.Blocks), least(page, n.BlockSize)))
	}
	return l, nil
}

// maxCount bounds a sample's value: a float64 holds every smaller integer exactly. Negative values and
// NaN are no load either.
const maxCount = 1 << 53

// addSample adds the value of one sample.
func (l *Load) addSample(n *engines.Metrics, s metric.Sample) {
	switch s.Name {
	case n.Running:
		l.Running += int(min(s.Value, math.MaxInt32))
	case n.Waiting:
		l.Waiting += int(min(s.Value, math.MaxInt32))
	case n.Usage:
		l.KVUsage = max(l.KVUsage, min(1, s.Value))
	case n.Queries:
		l.PrefixQueries += uint64(s.Value)
	case n.Hits, n.ExternalHits:
		l.PrefixHits += uint64(s.Value)
	case n.Gaps:
		l.Gaps += uint64(s.Value)
	case n.GapTime:
		l.GapTime += time.Duration(min(s.Value, maxGapSeconds) * float64(time.Second))
	case n.Drafts:
		l.drafts += s.Value
	case n.Accepted:
		l.accepted += s.Value
	case n.StepTokens:
		l.StepTokens = max(l.StepTokens, min(s.Value, fleet.MaxStepTokens))
	case n.SleepState:
		l.Asleep = l.Asleep || s.Labels["sleep_state"] == "awake" && s.Value == 0
	case n.Config:
		l.addCapacity(configuredTokens(s.Labels))
		l.CachingOff = l.CachingOff || s.Labels["enable_prefix_caching"] == "False"
	case n.Capacity:
		l.addCapacity(int(min(s.Value, maxCapacity)))
	}
}

// maxCapacity bounds the tokens of a KV cache. The largest ones hold some hundred million.
const maxCapacity = 1 << 40

// addCapacity counts the capacity of one rank in. The smallest rank counts, because capacities hold for any rank.
func (l *Load) addCapacity(tokens int) {
	if tokens > 0 && (l.Capacity == 0 || tokens < l.Capacity) {
		l.Capacity = tokens
	}
}

// least returns the smallest positive sample of a metric, which several models of one engine may have; 0 if there is none.
func least(page metric.Samples, name string) (value float64) {
	for _, s := range page {
		if s.Name == name && s.Value > 0 && (value == 0 || s.Value < value) {
			value = s.Value
		}
	}
	return value
}

// product returns the tokens of so many blocks; 0 if a factor is no count, or the product is more than maxCapacity.
func product(blocks, size float64) int {
	if !(blocks >= 1 && size >= 1 && blocks*size <= maxCapacity) {
		return 0
	}
	return int(blocks) * int(size)
}

// configuredTokens returns the size of a KV cache in tokens from the labels of vLLM's cache_config_info; 0 if they do not
// have it. Versions without kv_cache_size_tokens have the number of blocks.
func configuredTokens(labels map[string]string) int {
	if tokens, err := strconv.Atoi(labels["kv_cache_size_tokens"]); err == nil && tokens > 0 && tokens <= maxCapacity {
		return tokens
	}

	blocks, blocksErr := strconv.Atoi(labels["num_gpu_blocks"])
	size, sizeErr := strconv.Atoi(labels["block_size"])
	if blocksErr != nil || sizeErr != nil || blocks <= 0 || size <= 0 || blocks > maxCapacity/size {
		return 0
	}
	return blocks * size
}
