package prompt_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/test/race"
)

// talk is a conversation that grows by turns.
type talk struct {
	rng      *rand.Rand
	messages []map[string]any
}

// insertions are texts at which segments may be cut wrongly: special tokens, parts of them, and white space.
var insertions = []string{"<|im_end|>", "<|im_start|>", "<|im", "_end|>", "<|endoftext|>\n", " <|im_start|>user\n", "é\u0301", "\n\n\n", "<", "|>", "日本語", ""}

// turn adds one message of random length, with up to two of the insertions.
func (c *talk) turn() {
	text := prose(1+c.rng.IntN(1<<c.rng.IntN(12)), uint64(c.rng.IntN(40)))
	for range c.rng.IntN(3) {
		at := c.rng.IntN(len(text) + 1)
		text = strings.ToValidUTF8(text[:at]+insertions[c.rng.IntN(len(insertions))]+text[at:], "")
	}
	role := []string{"user", "assistant"}[len(c.messages)%2]
	c.messages = append(c.messages, map[string]any{"role": role, "content": text})
}

// request returns the conversation as a chat request, or in one of six cases some of its messages as a
// completion request. One in eight is truncated.
func (c *talk) request(t testing.TB) *prompt.Request {
	fields := map[string]any{"model": "sim"}
	if c.rng.IntN(8) == 0 {
		fields["truncate_prompt_tokens"] = 1 + c.rng.IntN(2000)
	}
	if c.rng.IntN(6) > 0 {
		fields["messages"] = c.messages
		body, _ := json.Marshal(fields)
		return parse(t, prompt.Chat, string(body))
	}
	var prompts []string
	for range 1 + c.rng.IntN(3) {
		prompts = append(prompts, c.messages[c.rng.IntN(len(c.messages))]["content"].(string)+"<|im_end|>x")
	}
	fields["prompt"] = prompts
	body, _ := json.Marshal(fields)
	return parse(t, prompt.Completions, string(body))
}

// compareWithPlain prepares one request with and without memory and compares errors, tokens and blocks.
func compareWithPlain(req *prompt.Request, plain, remembering *prompt.Model, p, q *prompt.Prompt, size int, seed uint64) error {
	refusal, got := fmt.Sprint(plain.Prepare(req, p)), fmt.Sprint(remembering.Prepare(req, q))
	if refusal != got {
		return fmt.Errorf("error %s, want %s", got, refusal)
	}
	if refusal != "<nil>" {
		return nil
	}
	want := blockhash.Append(nil, p.Tokens, size, seed)
	switch blocks := q.AppendBlocks(nil, size, seed); {
	case !slices.Equal(p.Tokens, q.Tokens) || p.Total != q.Total || p.Prompts != q.Prompts:
		return fmt.Errorf("%d tokens in the first prompt and %d in all, want %d and %d", len(q.Tokens), q.Total, len(p.Tokens), p.Total)
	case !slices.Equal(blocks, want):
		return fmt.Errorf("the %d block hashes of size %d differ from the %d without memory", len(blocks), size, len(want))
	}
	return nil
}

// TestMemoryIsExact checks that a memory never changes a token or a block hash. It uses random conversations
// that grow, share messages, and are evicted in between. STATOR_BENCH_MODEL selects another model.
func TestMemoryIsExact(t *testing.T) {
	race.Skip(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	plain := sim(t)
	if dir := os.Getenv("STATOR_BENCH_MODEL"); dir != "" {
		var err error
		if plain, err = prompt.Load(os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int64{64 << 10, 64 << 20} {
		mem := prompt.NewMemory(prompt.MemoryConfig{MaxBytes: size, Seed: seed})
		one, other := plain.WithMemory(mem), plain.WithMemory(mem)
		var p, q prompt.Prompt
		talks := make([]talk, 8)
		for i := range 1500 {
			c := &talks[rng.IntN(len(talks))]
			if c.rng = rng; len(c.messages) > 24 {
				c.messages = nil
			}
			c.turn()
			m := one
			if i%5 == 0 {
				m = other
			}
			if err := compareWithPlain(c.request(t), plain, m, &p, &q, []int{1, 4, 16, 64, 1000}[rng.IntN(5)], uint64(rng.IntN(3))); err != nil {
				t.Fatalf("seed %d, request %d: %v", seed, i, err)
			}
			if s := mem.Stats(); s.Bytes > s.MaxBytes || s.MaxBytes > size {
				t.Fatalf("%d bytes of %d, bound %d", s.Bytes, s.MaxBytes, size)
			}
		}
		if s := mem.Stats(); s.Hits == 0 || s.Misses == 0 || size < 1<<20 && s.Evicted == 0 {
			t.Errorf("memory of %d bytes: want hits, misses and, where small, evictions: %+v", size, s)
		}
	}
}

// TestMemoryIsShared checks that concurrent requests get the same results as requests one after another.
func TestMemoryIsShared(t *testing.T) {
	plain := sim(t)
	mem := prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 128 << 10, Seed: 1})
	remembering := plain.WithMemory(mem)
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			c := talk{rng: rand.New(rand.NewPCG(uint64(g), 0))}
			var p, q prompt.Prompt
			for i := range 60 {
				if c.turn(); i%20 == 0 {
					c.messages = c.messages[len(c.messages)-1:]
				}
				if err := compareWithPlain(c.request(t), plain, remembering, &p, &q, 16, 0); err != nil {
					t.Errorf("goroutine %d, request %d: %v", g, i, err)
				}
				mem.Stats()
			}
		})
	}
	group.Wait()
}

// TestNextTurnEncodesOnlyItsEnd checks that the next turn of a stored conversation encodes only its new text,
// and that preparing a stored prompt does not allocate.
func TestNextTurnEncodesOnlyItsEnd(t *testing.T) {
	mem := prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 4 << 20, Seed: 1})
	m := sim(t).WithMemory(mem)
	var s stage
	s.prepare(t, m, conversation(20_000, 1))
	before := mem.Stats()
	s.prepare(t, m, withMessage(conversation(20_000, 1), "And then?"))
	after := mem.Stats()
	if hit, miss := after.HitText-before.HitText, after.MissText-before.MissText; hit < 17_500 || miss > 2500 {
		t.Errorf("%d bytes of the next turn were in the memory and %d were not, want at least 17500 and at most 2500", hit, miss)
	}
	req := parse(t, prompt.Completions, `{"model":"m","prompt":"`+strings.Repeat("the <|im_end|> time and ", 1000)+`"}`)
	n := testing.AllocsPerRun(100, func() {
		if err := m.Prepare(req, &s.prompt); err != nil {
			t.Fatal(err)
		}
		s.blocks = s.prompt.AppendBlocks(s.blocks[:0], 16, 0)
	})
	if n != 0 {
		t.Errorf("%v allocations for a stored prompt, want 0", n)
	}
}

// TestMemoryKeepsEntriesInUse checks that entries in regular use stay while others are evicted.
func TestMemoryKeepsEntriesInUse(t *testing.T) {
	mem := prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 256 << 10, Seed: 1})
	m := sim(t).WithMemory(mem)
	var s stage
	for i := range 200 {
		s.prepare(t, m, conversation(3000, 1))
		s.prepare(t, m, conversation(3000, uint64(1000+i*10)))
		if i == 0 {
			continue
		}
		before := mem.Stats()
		if s.prepare(t, m, conversation(3000, 1)); mem.Stats().Misses != before.Misses {
			t.Fatalf("round %d: a conversation in use was evicted: %+v", i, mem.Stats())
		}
	}
	if mem.Stats().Evicted == 0 {
		t.Error("no entry was evicted, so the test shows nothing")
	}
}

// TestMemoryOfNoBytesIsOff checks that a size of 0 turns the memory off and that a nil memory is usable.
func TestMemoryOfNoBytesIsOff(t *testing.T) {
	mem := prompt.NewMemory(prompt.MemoryConfig{})
	if mem != nil || mem.Stats() != (prompt.MemoryStats{}) {
		t.Errorf("%+v", mem.Stats())
	}
	var s stage
	s.prepare(t, sim(t).WithMemory(mem), conversation(3000, 1))
	if want := len(s.prompt.Tokens) / 16; len(s.blocks) != want {
		t.Errorf("%d blocks, want %d", len(s.blocks), want)
	}
}
