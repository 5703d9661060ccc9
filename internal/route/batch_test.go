package route_test

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// letters is a model whose tokens are the bytes of a completion's prompts, and which counts all of them.
type letters struct{}

func (letters) Prepare(req *prompt.Request, dst *prompt.Prompt) error {
	for i, p := range req.Prompts {
		for _, c := range []byte(p.Text) {
			if i == 0 {
				dst.Tokens = append(dst.Tokens, uint32(c))
			}
			dst.Total++
		}
		dst.Prompts++
	}
	return nil
}

// lettersRouter routes over workers whose prompts come from letters, in blocks of 16.
func lettersRouter(t testing.TB, workers int, cfg serving.Config) (*route.Router, *fleet.Fleet, *kvindex.Index) {
	x := kvindex.New(kvindex.Config{MaxBytes: 16 << 20})
	f := newFleet(t, x, workers)
	r := route.New(route.Config{Seed: 1}, f, x)
	cfg.Prompt = letters{}
	if err := r.SetModels(map[string]*serving.Config{"sim": &cfg}); err != nil {
		t.Fatal(err)
	}
	return r, f, x
}

// batchOf is a completion of these prompts with n answers to each.
func batchOf(n int, prompts ...string) *request.Request {
	req := completion("")
	req.Parsed.N, req.Parsed.Prompts = n, nil
	for _, text := range prompts {
		req.Parsed.Prompts = append(req.Parsed.Prompts, openai.Prompt{Text: text})
	}
	return req
}

// report stores a prompt's blocks as the engine's events do.
func report(x *kvindex.Index, rank fleet.Rank, text string) {
	size := cmp.Or(rank.Worker.TokensPerBlock(), serving.DefaultBlockSize)
	var ids []uint32
	for _, c := range []byte(text) {
		ids = append(ids, uint32(c))
	}
	blocks := blockhash.Append(nil, ids, size, blockhash.Seed("", ""))
	hashes := make([]uint64, len(blocks))
	for i, s := range blockhash.Chain(nil, blocks) {
		hashes[i] = uint64(s)
	}
	x.Store(rank.ID, fleet.Device, kvindex.Chain{Hashes: hashes, Blocks: blocks})
}

// TestBatchesAreBookedWhole books each sequence, and the prompt's prefill and blocks once.
func TestBatchesAreBookedWhole(t *testing.T) {
	text := strings.Repeat("a", 160)
	for _, c := range []struct {
		n, prompts, osl int
		want            fleet.Amount
	}{
		{0, 1, 0, fleet.Amount{Requests: 1, PrefillTokens: 160, DecodeBlocks: 10}},
		{16, 1, 0, fleet.Amount{Requests: 16, PrefillTokens: 160, DecodeBlocks: 10}},
		{16, 1, 64, fleet.Amount{Requests: 16, PrefillTokens: 160, DecodeBlocks: 10 + 16*2}},
		{1, 3, 0, fleet.Amount{Requests: 3, PrefillTokens: 480, DecodeBlocks: 30}},
		{2, 3, 64, fleet.Amount{Requests: 6, PrefillTokens: 480, DecodeBlocks: 30 + 6*2}},
		{math.MaxInt, 3, 0, fleet.Amount{Requests: 4096, PrefillTokens: 480, DecodeBlocks: 30}},
	} {
		r, f, _ := lettersRouter(t, 1, serving.Config{})
		req := batchOf(c.n)
		for range c.prompts {
			req.Parsed.Prompts = append(req.Parsed.Prompts, openai.Prompt{Text: text})
		}
		req.Hints = &prompt.Hints{Rank: -1, OutputTokens: c.osl}
		d := r.Decide(req, start)

		load := f.Snapshot().Ranks[0].Load
		got := load.Booked()
		got.PrefillTime = 0
		if got != c.want {
			t.Errorf("n=%d, %d prompts, osl %d: %+v, want %+v", c.n, c.prompts, c.osl, got, c.want)
		}
		r.End(d.ID, start)
		if left := load.Booked(); left != (fleet.Amount{}) {
			t.Errorf("n=%d, %d prompts: %+v is left", c.n, c.prompts, left)
		}
	}
}

// TestBatchesAreNotUntracked runs a request with many answers on a worker that has a long prompt in its cache. The engine reports each
// answer, and the next turn of the prompt must still go to its cache.
func TestBatchesAreNotUntracked(t *testing.T) {
	long := strings.Repeat("all work and no play ", 200)
	for _, n := range []int{1, 8, 128} {
		r, f, x := lettersRouter(t, 2, serving.Config{})
		w0 := f.Snapshot().Ranks[0]
		report(x, w0, long)
		batch := batchOf(n, "hi")
		batch.Hints = &prompt.Hints{Rank: -1, Worker: "w0"}
		if d := r.Decide(batch, start); d.Worker != "w0" {
			t.Fatal(d)
		}

		now := start
		for range 2 {
			now = now.Add(500 * time.Millisecond)
			r.SettlePrefills(now)
			r.ObserveReport(w0, fleet.Report{At: now, Running: n, KVUsage: 0.01})
		}
		d := r.Decide(batchOf(1, long), now)
		if n < 128 && d.Worker != "w0" || d.Candidates[0].Untracked != 0 {
			t.Errorf("n=%d: %s", n, d)
		}
	}
}

// TestBatchesOfPromptsTeachNothing runs completions of many prompts, of which the engine reports the first early. The learned line must
// stay the line of single prompts.
func TestBatchesOfPromptsTeachNothing(t *testing.T) {
	r, f, x := lettersRouter(t, 1, serving.Config{})
	rank, now := f.Snapshot().Ranks[0], start
	run := func(i, prompts int) {
		var list []string
		for j := range prompts {
			list = append(list, fmt.Sprintf("%d %d ", i, j)+strings.Repeat("all work and no play ", 10+i%50))
		}
		d := r.Decide(batchOf(1, list...), now)
		took := 20*time.Millisecond + time.Duration(len(list[0]))*20*time.Microsecond
		now = now.Add(took)
		report(x, rank, list[0])
		r.SettlePrefills(now)
		now = now.Add(time.Minute)
		r.SettlePrefills(now)
		r.End(d.ID, now)
	}

	for i := range 100 {
		run(i, 1)
	}
	before := r.Speeds()[learned.WorkerClass{Model: "sim"}].Prefill
	for i := range 100 {
		run(1000+i, 128)
	}
	if after := r.Speeds()[learned.WorkerClass{Model: "sim"}].Prefill; after != before || before.Observed != 92 {
		t.Errorf("single prompts: %s, of which the first 8 are ignored; batches: %s", before, after)
	}
}

// TestClaimedLengthIsBounded claims the longest answer that a hint can name.
func TestClaimedLengthIsBounded(t *testing.T) {
	for _, c := range []struct{ context, maxTokens, want int }{
		{0, 0, 131_072}, {0, 320, 320}, {4160, 0, 4000}, {4160, 320, 320}, {160, 0, 0}, {100, 0, 0}, {math.MaxInt32, 0, 131_072},
	} {
		r, f, _ := lettersRouter(t, 1, serving.Config{ContextLength: c.context})
		req := batchOf(1, strings.Repeat("a", 160))
		req.Parsed.MaxTokens = c.maxTokens
		req.Hints = &prompt.Hints{Rank: -1, OutputTokens: math.MaxInt32}
		r.Decide(req, start)
		if got := f.Snapshot().Ranks[0].Load.Booked().DecodeBlocks; got != int64(10+c.want/32) {
			t.Errorf("context %d, max_tokens %d: %d blocks, want those of the prompt and of %d tokens", c.context, c.maxTokens, got, c.want)
		}
	}
}
