package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// optionsSeen has an engine's report of the options that docs/engines asks for, beside what all engines report. Its kind
// decides which fields are read; the rest has its zero value.
type optionsSeen struct {
	version    string
	metricsErr error // /metrics lacks values that routers read there
	eventsOff  bool  // the options turn KV events off
	replayOff  bool  // events are published, and no replay socket is set
	hasServed  bool  // TensorRT-LLM: it has answered requests
	capacity   int   // llama.cpp: the tokens that its cache has room for
	workers    int   // Dynamo: how many workers its frontend sends requests to; -1 if that is unknown

	transfer     fleet.Transfer // how it transfers KV caches
	transferSeen bool           // its metrics show that
	mode         string         // SGLang: --disaggregation-mode, prefill, decode or null
}

// askMetrics reads an engine's metrics.
func (e *engineSeen) askMetrics(ctx context.Context, at engineAt, kind *engines.Kind, model string) {
	page, err := readMetrics(ctx, at.client, at.base+"/metrics")
	marker := kind.Metrics.Marker
	status := statusError{}
	switch {
	case marker == "":
	case errors.As(err, &status):
		e.metricsErr = fmt.Errorf("/metrics answers %d", status.status)
	case err != nil:
		e.metricsErr = err
	case !slices.ContainsFunc(page, func(s metric.Sample) bool { return s.Name == marker }):
		e.metricsErr = errors.New("the page has no " + marker)
	}

	if kind.Pages == engines.DynamoPages {
		if size := page.Sum(kind.Metrics.BlockSize, "model", model); size > 0 && size <= maxTokens {
			e.blockSize = int(size)
		}
		e.queries = page.Sum("dynamo_frontend_input_sequence_tokens_sum")
		e.hits = page.Sum("dynamo_frontend_cached_tokens_sum")
		return
	}
	e.transfer, e.transferSeen = engineprobe.SeenTransfer(kind, page)
	e.readVLLM(page)
}

// readVLLM reads the options that vLLM and the simulated engine report in their metrics.
func (e *engineSeen) readVLLM(page metric.Samples) {
	names := &engines.VLLM.Metrics
	e.blockSize, _ = strconv.Atoi(page.Label(names.Config, "block_size"))
	e.hashAlgo = page.Label(names.Config, "prefix_caching_hash_algo")
	e.cachingOff = page.Label(names.Config, "enable_prefix_caching") == "False"
	e.queries = page.Sum(names.Queries)
	e.hits = page.Sum(names.Hits)
}

// askOptions reads the pages that the kind of engine has for its options. An engine without a page reports nothing.
func (e *engineSeen) askOptions(ctx context.Context, at engineAt, kind *engines.Kind, model string) {
	e.workers = -1
	switch kind.Pages {
	case engines.VLLMPages:
		e.askVersion(ctx, at)
		e.replayOff = e.sourcesErr == nil && len(e.sources) > 0 && e.sources[0].Replay == ""
	case engines.SGLangPages:
		e.askSGLang(ctx, at)
	case engines.TRTLLMPages:
		e.askVersion(ctx, at)
		// GET /metrics would take the statistics away from other readers.
		if page, err := readMetrics(ctx, at.client, at.base+kind.Metrics.Path); err == nil {
			e.hasServed = page.Sum("trtllm_request_success_total") > 0
		}
	case engines.LlamaPages:
		e.askLlama(ctx, at)
	case engines.DynamoPages:
		e.askFrontend(ctx, at, model)
	}
}

func (e *engineSeen) askVersion(ctx context.Context, at engineAt) {
	var answer struct {
		Version string `json:"version"`
	}
	if _, err := getJSON(ctx, at.client, at.base+"/version", &answer); err == nil {
		e.version = answer.Version
	}
}

// sglangInfo is the part of SGLang's server info that is read: its options, of which kv_events_config is JSON in a text, or null.
type sglangInfo struct {
	Version      string          `json:"version"`
	CachingOff   bool            `json:"disable_radix_cache"`
	PageSize     int             `json:"page_size"`
	EventsConfig json.RawMessage `json:"kv_events_config"`
	Mode         string          `json:"disaggregation_mode"`
}

func (e *engineSeen) askSGLang(ctx context.Context, at engineAt) {
	var info sglangInfo
	_, err := getJSON(ctx, at.client, at.base+"/get_server_info", &info)
	if status := (statusError{}); errors.As(err, &status) && status.status == http.StatusNotFound {
		_, err = getJSON(ctx, at.client, at.base+"/server_info", &info) // its name in later versions
	}
	if err != nil {
		return
	}

	e.version = info.Version
	e.mode = info.Mode
	e.cachingOff = info.CachingOff
	e.blockSize = max(0, info.PageSize)
	var events struct {
		Publisher string `json:"publisher"`
		Replay    string `json:"replay_endpoint"`
	}
	text := ""
	if json.Unmarshal(info.EventsConfig, &text) != nil {
		return // a form that is not known
	}
	if text != "" && json.Unmarshal([]byte(text), &events) != nil {
		return // SGLang would not have started with it
	}
	e.eventsOff = events.Publisher == "" || events.Publisher == "null"
	e.replayOff = !e.eventsOff && events.Replay == ""
}

// maxSlots and maxTokens bound the numbers that engines report.
const (
	maxSlots  = 1 << 16
	maxTokens = 1 << 30
)

func (e *engineSeen) askLlama(ctx context.Context, at engineAt) {
	var props struct {
		Slots    int    `json:"total_slots"`
		Build    string `json:"build_info"`
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if _, err := getJSON(ctx, at.client, at.base+"/props", &props); err != nil {
		return
	}
	e.version = props.Build
	if props.Slots > 0 && props.Slots <= maxSlots && props.Settings.Context > 0 && props.Settings.Context <= maxTokens {
		e.capacity = props.Slots * props.Settings.Context // n_ctx is the context of one slot
	}
}

// askFrontend counts the workers behind a frontend of Dynamo, which answers 404 if there are none.
func (e *engineSeen) askFrontend(ctx context.Context, at engineAt, model string) {
	if model == "" {
		e.workers = 0
		return
	}
	var answer struct {
		Namespaces map[string]struct {
			Types map[string]struct {
				Workers int `json:"workers"`
			} `json:"worker_types"`
		} `json:"namespaces"`
	}
	_, err := getJSON(ctx, at.client, fmt.Sprintf("%s/v1/models/%s/ready", at.base, url.PathEscape(model)), &answer)
	if status := (statusError{}); errors.As(err, &status) && status.status == http.StatusNotFound {
		e.workers = 0
		return
	}
	if err != nil || len(answer.Namespaces) == 0 {
		return
	}

	e.workers = 0
	for _, n := range answer.Namespaces {
		for _, t := range n.Types {
			e.workers += max(0, t.Workers)
		}
	}
}
