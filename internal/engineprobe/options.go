package engineprobe

import (
	"context"
	"encoding/json"
	"io"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Options are the settings that some kinds of engines report. Each is 0 or empty if the engine does not report it.
type Options struct {
	// BlockSize is in tokens, and Ranks counts data-parallel ranks.
	BlockSize, Ranks int
	// ContextLength is the most tokens of a prompt and its answer, Requests the number of requests that run at once, and BatchTokens the
	// number of prompt tokens of a pass.
	ContextLength, Requests, BatchTokens int
	// CachingOff means that the engine has no prefix cache.
	CachingOff bool
	// Path is the folder, the file or the repository that the model was loaded from.
	Path string
}

// Options reads the options of SGLang and llama.cpp. Other kinds have no page of them, and report none.
func (p *Probe) Options(ctx context.Context) (Options, error) {
	switch p.pages {
	case engines.SGLangPages:
		return p.sglangOptions(ctx)
	case engines.LlamaPages:
		return p.llamaOptions(ctx)
	}
	return Options{}, nil
}

func (p *Probe) sglangOptions(ctx context.Context) (Options, error) {
	var page struct {
		PageSize  int    `json:"page_size"`
		Ranks     int    `json:"dp_size"`
		Context   int    `json:"context_length"`
		Requests  int    `json:"max_running_requests"`
		Chunk     int    `json:"chunked_prefill_size"`
		ModelPath string `json:"model_path"`
		NoCache   bool   `json:"disable_radix_cache"`
	}
	if err := p.readJSON(ctx, "/server_info", &page); err != nil {
		return Options{}, err
	}
	return Options{
		BlockSize: within(page.PageSize, maxBlockSize), Ranks: within(page.Ranks, fleet.MaxRanks),
		ContextLength: within(page.Context, fleet.MaxContext), Requests: within(page.Requests, maxOption),
		BatchTokens: within(page.Chunk, maxOption), Path: pathOf(page.ModelPath), CachingOff: page.NoCache,
	}, nil
}

func (p *Probe) llamaOptions(ctx context.Context) (Options, error) {
	var page struct {
		ModelPath string `json:"model_path"`
		Slots     int    `json:"total_slots"`
		Settings  struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := p.readJSON(ctx, "/props", &page); err != nil {
		return Options{}, err
	}
	return Options{
		ContextLength: within(page.Settings.Context, fleet.MaxContext), Requests: within(page.Slots, maxOption),
		Path: pathOf(page.ModelPath),
	}, nil
}

// readJSON reads a page of at most maxAnswer bytes.
func (p *Probe) readJSON(ctx context.Context, path string, page any) error {
	return p.readPage(ctx, path, func(r io.Reader) error {
		return json.NewDecoder(io.LimitReader(r, maxAnswer)).Decode(page)
	})
}

// maxOption bounds the numbers of requests and of tokens of a pass.
const maxOption = 1 << 24

// within returns n if it is 1 to most, and else 0.
func within(n, most int) int {
	if n < 1 || n > most {
		return 0
	}
	return n
}

// pathOf returns a path of at most maxPath bytes, and else none.
func pathOf(path string) string {
	if len(path) > maxPath {
		return ""
	}
	return path
}
