package shadow

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/sim"
)

const version = `{"version":1,"format":"stator-decisions"}` + "\n"

// entry is a request of a log: its prompt has the blocks PP and PQ, and 8 further tokens.
type entry struct {
	prompt byte // P
	served int  // number of the worker
}

// logOf is a log of requests for two workers with caches of so many blocks. By the log worker 0 has each prompt, and the router picks it.
func logOf(capacity int, entries ...entry) string {
	var b strings.Builder
	b.WriteString(version)
	for i, e := range entries {
		fmt.Fprintf(&b, `{"decision":{"id":"%d","at":"2026-01-02T03:04:%02dZ","model":"m","prompt_tokens":40,"blocks":2,"block_size":16,`+
			`"cached_tokens":32,"candidates":[{"address":"a:0","capacity_blocks":%d,"score":{"uncached_tokens":8}},`+
			`{"address":"a:1","capacity_blocks":%[3]d,"score":{"uncached_tokens":40}}]},"hash_every":1,`+
			`"hashes":["00000000000000%02[4]x","00000000000001%02[4]x"]}`+"\n", i, i, capacity, e.prompt)
		fmt.Fprintf(&b, `{"end":{"id":"%d","outcome":"unconfirmed","served":"a:%d","output_tokens":3}}`+"\n", i, e.served)
	}
	return b.String()
}

// readOne reads a log of one model.
func readOne(t *testing.T, log string) *Model {
	t.Helper()
	models, err := Read(strings.NewReader(log), "")
	if err != nil || len(models) != 1 {
		t.Fatalf("%d models, %v", len(models), err)
	}
	return models[0]
}

// predict plays a model's requests on engines with the caches of its log.
func predict(t *testing.T, m *Model, replicas int) *Prediction {
	t.Helper()
	cfg := sim.Config{Workers: m.Workers, Replicas: replicas}
	cfg.Engine.Blocks = m.Blocks
	cfg.Engine.BlockSize = m.BlockSize
	p, err := m.Predict(cfg, 3)
	if err != nil || len(p.Routed) != 3 {
		t.Fatalf("%d replays, %v", len(p.Routed), err)
	}
	return p
}

// TestRead: requests count for the worker that served. One that a worker outside the log served counts without its cache.
func TestRead(t *testing.T) {
	m := readOne(t, logOf(100, entry{1, 0}, entry{1, 1}, entry{1, 0}, entry{1, 7}))
	if m.Requests != 4 || m.Tokens != 160 || m.Seen != 3 || m.SeenTokens != 120 || m.Served != 64 || m.Picked != 96 || m.Most != 96 ||
		m.Better != 1 || m.Gained != 32 || m.Workers != 2 || m.Blocks != 100 || m.BlockSize != 16 {
		t.Errorf("%+v", m)
	}
	want := "Of these requests, 1 would have found more on the router's pick: 32 tokens together."
	if lines := m.Findings(); lines[len(lines)-1] != want {
		t.Errorf("findings %q", lines)
	}
}

// TestReadRanks: ranks that share an address are different workers, and it is not known which of them has served.
func TestReadRanks(t *testing.T) {
	log := logOf(0, entry{1, 0}, entry{1, 0})
	m := readOne(t, strings.ReplaceAll(log, `"address":"a:1"`, `"address":"a:0","rank":1`))
	if m.Workers != 2 || m.Requests != 2 || m.Seen != 0 {
		t.Errorf("%+v", m)
	}
	text := strings.Join(m.Findings(), "\n")
	for _, want := range []string{"give --blocks", "response_attributes: [upstream.address]"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in %s", want, text)
		}
	}
}

// TestReadModels: models come in order of their first requests, and one can be chosen.
func TestReadModels(t *testing.T) {
	other := strings.NewReplacer(`"id":"`, `"id":"n`, `"m"`, `"n"`).Replace(logOf(100, entry{1, 1}, entry{1, 0}))
	log := logOf(100, entry{1, 0}) + other
	models, err := Read(strings.NewReader(log), "")
	if err != nil || len(models) != 2 || models[0].Name != "m" || models[0].Requests != 1 || models[1].Requests != 2 {
		t.Errorf("%+v, %v", models, err)
	}
	models, err = Read(strings.NewReader(log), "n")
	if err != nil || len(models) != 1 || models[0].Seen != 2 || models[0].Served != 32 {
		t.Errorf("%+v, %v", models, err)
	}
}

// TestReadRefuses: a log without the asked model, and one with too many workers, are errors.
func TestReadRefuses(t *testing.T) {
	if _, err := Read(strings.NewReader(logOf(100, entry{1, 0})), "other"); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("another model: %v", err)
	}
	var many []string
	for i := range maxWorkers + 1 {
		many = append(many, fmt.Sprintf(`{"address":"a:%d"}`, i))
	}
	text := version + `{"decision":{"id":"1","model":"m","prompt_tokens":1,"block_size":16,"candidates":[` + strings.Join(many, ",") +
		`]},"hash_every":1}`
	want := "line 2: the log has more than 4096 workers"
	if _, err := Read(strings.NewReader(text), ""); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("many workers: %v", err)
	}
}

// TestPredict: the replay of the placements finds what these workers have, also with several routers. The router sends all requests
// with the prompt to one worker.
func TestPredict(t *testing.T) {
	m := readOne(t, logOf(100, entry{1, 0}, entry{1, 1}, entry{1, 0}, entry{1, 1}, entry{1, 1}))
	for replicas := 1; replicas <= 2; replicas++ {
		p := predict(t, m, replicas)
		if w := p.Logged.PerWorker; w[0].Requests != 2 || w[1].Requests != 3 || found(p.Logged) != 3*32 {
			t.Errorf("%d routers: as it was %+v", replicas, p.Logged)
		}
		if found(p.Middle()) != 4*32 {
			t.Errorf("%d routers: the router found %v", replicas, found(p.Middle()))
		}
	}
	want := "Tokens found in caches: 96 as it was, 128 with the router (128 to 128)."
	if lines := predict(t, m, 1).Lines(); lines[1] != want {
		t.Errorf("lines %q", lines)
	}
}

// TestPredictEvicts: caches of the replay are as small as the log's. A request needs three blocks. So with four, one of the two blocks of
// the other prompt is evicted, the last one first.
func TestPredictEvicts(t *testing.T) {
	for capacity, want := range map[int]float64{100: 4 * 32, 4: 4 * 16} {
		m := readOne(t, logOf(capacity, entry{1, 0}, entry{2, 0}, entry{1, 0}, entry{2, 0}, entry{1, 0}, entry{2, 0}))
		if got := found(predict(t, m, 1).Logged); got != want {
			t.Errorf("with %d blocks: %v tokens, want %v", capacity, got, want)
		}
	}
}

// FuzzRead: any log is refused, or its counts agree.
func FuzzRead(f *testing.F) {
	f.Add([]byte(logOf(100, entry{1, 0}, entry{2, 1})))
	f.Add([]byte(strings.ReplaceAll(logOf(100, entry{1, 0}), `"uncached_tokens":8`, `"uncached_tokens":-8`)))
	f.Fuzz(func(t *testing.T, log []byte) {
		models, err := Read(strings.NewReader(string(log)), "")
		if err != nil {
			return
		}
		for _, m := range models {
			if m.Requests < 1 || m.Seen > m.Requests || m.SeenTokens > m.Tokens || m.Served > m.Most || m.Picked > m.SeenTokens ||
				m.Most > m.SeenTokens || m.Gained > m.Picked || m.Workers > maxWorkers || len(m.placed) != m.Requests {
				t.Errorf("%+v", m)
			}
		}
	})
}
