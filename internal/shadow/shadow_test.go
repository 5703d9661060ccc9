package shadow

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/sim"
)

const version = `{"version":1,"format":"stator-decisions"}` + "\n"

// logged is a log of requests with one prompt of two blocks on two workers. Each was served by the worker with that number, or by an
// unknown one. Worker 0 has the first served prompt.
func logged(served ...int) string {
	var b strings.Builder
	b.WriteString(version)
	for i, worker := range served {
		fmt.Fprintf(&b, `{"decision":{"id":"%d","at":"2026-01-02T03:04:%02dZ","model":"m","prompt_tokens":40,"blocks":2,"block_size":16,`+
			`"cached_tokens":32,"candidates":[{"address":"a:0","capacity_blocks":100,"score":{"uncached_tokens":8}},`+
			`{"address":"a:1","capacity_blocks":100,"score":{"uncached_tokens":40}}]},"hash_every":1,`+
			`"hashes":["00000000000000aa","00000000000000bb"]}`+"\n", i, i)
		fmt.Fprintf(&b, `{"end":{"id":"%d","outcome":"unconfirmed","served":"a:%d","output_tokens":3}}`+"\n", i, worker)
	}
	return b.String()
}

// TestRead: requests count for the worker that served, and one that a foreign worker served counts without its cache. The replay of the
// placements finds what these workers have.
func TestRead(t *testing.T) {
	models, err := Read(strings.NewReader(logged(0, 1, 0, 7)), "")
	if err != nil || len(models) != 1 {
		t.Fatalf("%d models, %v", len(models), err)
	}
	m := models[0]
	if m.Requests != 4 || m.Seen != 3 || m.Served != 64 || m.Picked != 96 || m.Most != 96 || m.Better != 1 || m.Gained != 32 ||
		m.Workers != 2 || m.Blocks != 100 || m.BlockSize != 16 {
		t.Errorf("%+v", m)
	}

	cfg := sim.Config{Workers: m.Workers}
	cfg.Engine.BlockSize = m.BlockSize
	was, routed, err := m.Replay(cfg)
	if err != nil || was.PerWorker[0].Requests+was.PerWorker[1].Requests != 4 || was.PrefixReuse != 64.0/160 || routed.PrefixReuse != 96.0/160 {
		t.Errorf("%v, as it was %+v, routed %v", err, was, routed)
	}
}

// TestReadRefuses: a log without the asked model, and one with too many workers, are errors.
func TestReadRefuses(t *testing.T) {
	if _, err := Read(strings.NewReader(logged(0)), "other"); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("another model: %v", err)
	}
	var many []string
	for i := range maxWorkers + 1 {
		many = append(many, fmt.Sprintf(`{"address":"a:%d"}`, i))
	}
	text := version + `{"decision":{"id":"1","model":"m","prompt_tokens":1,"block_size":16,"candidates":[` + strings.Join(many, ",") + `]},"hash_every":1}`
	if _, err := Read(strings.NewReader(text), ""); err == nil || !strings.Contains(err.Error(), "more than 4096 workers") {
		t.Errorf("many workers: %v", err)
	}
}
