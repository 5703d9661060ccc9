package affinity_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/affinitykeys"
	"github.com/stator-project/stator/wasm/affinity"
)

func TestKeysOfExamples(t *testing.T) {
	lines, classes := map[string]affinitykeys.Example{}, map[string]string{}
	for _, e := range affinitykeys.All() {
		key, ok := affinity.Key([]byte(e.Body))
		if ok != (e.Class != "-") {
			t.Errorf("line %d: a key %v, want one: %v", e.Line, ok, e.Class != "-")
			continue
		}
		if !ok {
			continue
		}
		if len(key) != 16 {
			t.Errorf("line %d: key %q", e.Line, key)
		}

		if other, known := lines[key]; known && other.Class != e.Class {
			t.Errorf("line %d has the key of line %d", e.Line, other.Line)
		}
		if other, known := classes[e.Class]; known && other != key {
			t.Errorf("line %d has another key than the lines of its class", e.Line)
		}
		lines[key] = e
		classes[e.Class] = key
	}
}

// TestPiecesDoNotMatter reads bodies in pieces, as Envoy receives them.
func TestPiecesDoNotMatter(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, e := range affinitykeys.All() {
		want, _ := affinity.Key([]byte(e.Body))
		for range 20 {
			if got := inPieces(random, []byte(e.Body)); got != want {
				t.Fatalf("line %d: key %q in pieces, %q in one", e.Line, got, want)
			}
		}
	}
}

func inPieces(random *rand.Rand, body []byte) string {
	var s affinity.Scanner
	for len(body) > 0 {
		n := 1 + random.IntN(min(len(body), 20))
		s.Add(body[:n])
		body = body[n:]
	}
	key, _ := s.Key()
	return key
}

// TestTurnsOfAConversation grows random conversations. All turns have one key, in whatever order the members of a body
// come, and no other conversation has it.
func TestTurnsOfAConversation(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	of := map[string]int{}
	for conversation := range 300 {
		model := fmt.Sprint("model-", random.IntN(2))
		messages := beginning(random, conversation)

		first := ""
		for turn := range 6 {
			key, ok := affinity.Key(bodyOf(t, random, map[string]any{
				"model": model, "messages": messages, "tools": []any{map[string]any{"messages": "x"}}, "stream": turn%2 == 0,
			}))
			if !ok || turn > 0 && key != first {
				t.Fatalf("conversation %d has the key %q (%v) in turn %d, and began with %q", conversation, key, ok, turn, first)
			}
			first = key
			messages = append(messages, message("assistant", text(random)), message("user", text(random)))
		}

		if other, known := of[first]; known {
			t.Errorf("conversations %d and %d have one key", conversation, other)
		}
		of[first] = conversation

		for what, changed := range map[string][]byte{
			"another model":         bodyOf(t, random, map[string]any{"model": model + "x", "messages": messages}),
			"another first message": bodyOf(t, random, map[string]any{"model": model, "messages": beginning(random, -1-conversation)}),
		} {
			if key, _ := affinity.Key(changed); key == first {
				t.Errorf("conversation %d keeps its key with %s", conversation, what)
			}
		}
	}
}

// beginning returns instructions, sometimes, and the first message of a user.
func beginning(random *rand.Rand, number int) []any {
	var list []any
	if random.IntN(2) == 0 {
		list = append(list, message("system", text(random)))
	}
	return append(list, message("user", fmt.Sprint(number, text(random))))
}

func message(role, content string) map[string]any {
	return map[string]any{"role": role, "content": content}
}

// text returns a random text with characters that JSON escapes.
func text(random *rand.Rand) string {
	const letters = "abc {}[]:,\"\\\n\té🙂"
	runes := []rune(letters)
	var b strings.Builder
	for range random.IntN(60) {
		b.WriteRune(runes[random.IntN(len(runes))])
	}
	return b.String()
}

// bodyOf writes members in a random order.
func bodyOf(t *testing.T, random *rand.Rand, members map[string]any) []byte {
	t.Helper()

	names := slices.Sorted(maps.Keys(members))
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	var b bytes.Buffer
	for i, name := range names {
		value, err := json.Marshal(members[name])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%c%q: %s", ",{"[min(1, max(0, 1-i))], name, value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// TestPromptsShareTheirBeginning: what follows the first kilobyte of a prompt does not change its key.
func TestPromptsShareTheirBeginning(t *testing.T) {
	beginning := strings.Repeat("In the beginning was the word. ", 40)
	keyOf := func(prompt string) string {
		key, ok := affinity.Key(fmt.Appendf(nil, `{"model":"m","prompt":%q}`, prompt))
		if !ok {
			t.Fatal("no key")
		}
		return key
	}
	if keyOf(beginning) != keyOf(beginning+"And then?") {
		t.Error("a prompt that goes on has another key")
	}
	if keyOf(beginning) == keyOf("x"+beginning) {
		t.Error("a prompt that begins differently has the same key")
	}
}

// TestLimit: a model that comes after the limit is not part of the key, and no byte after the limit is.
func TestLimit(t *testing.T) {
	chat := `"messages":[{"role":"user","content":"Who?"},{"role":"assistant","content":"` + strings.Repeat("long ", affinity.Limit/5) + `"}]`
	late, ok := affinity.Key([]byte("{" + chat + `,"model":"m"}`))
	without, _ := affinity.Key([]byte("{" + chat + "}"))
	if !ok || late != without {
		t.Errorf("key %q (%v) with a model beyond the limit, %q without", late, ok, without)
	}
	first, _ := affinity.Key([]byte(`{"model":"m",` + chat + "}"))
	if short, _ := affinity.Key([]byte(`{"model":"m","messages":[{"role":"user","content":"Who?"}]}`)); first != short {
		t.Error("a long conversation has another key than its first turn")
	}

	// A first message that is longer than the limit counts as far as it was read.
	long := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("long ", affinity.Limit/5)
	one, ok := affinity.Key([]byte(long + `one"}]}`))
	two, _ := affinity.Key([]byte(long + `two"}]}`))
	if !ok || one != two {
		t.Errorf("keys %q (%v) and %q differ behind the limit", one, ok, two)
	}

	var s affinity.Scanner
	s.Add([]byte(long))
	if !s.Done() {
		t.Error("a scanner beyond its limit is not done")
	}
}

// TestEveryCutOfABody: a body may end anywhere, at any depth.
func TestEveryCutOfABody(t *testing.T) {
	for _, e := range affinitykeys.All() {
		for i := range len(e.Body) {
			affinity.Key([]byte(e.Body[:i]))
			affinity.Key([]byte(e.Body[i:]))
		}
	}
	deep := strings.Repeat(`{"messages":[`, 100)
	affinity.Key([]byte(deep + strings.Repeat("]}", 100)))
}

// FuzzKey feeds any bytes, in two pieces and in one: no panic, and the same key.
func FuzzKey(f *testing.F) {
	for _, e := range affinitykeys.All() {
		f.Add([]byte(e.Body), len(e.Body)/2)
	}
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		want, wantOK := affinity.Key(body)
		cut = max(0, min(cut, len(body)))
		var s affinity.Scanner
		s.Add(body[:cut])
		s.Add(body[cut:])
		if got, ok := s.Key(); got != want || ok != wantOK {
			t.Errorf("key %q, %v in two pieces, %q, %v in one", got, ok, want, wantOK)
		}
	})
}

func BenchmarkKey(b *testing.B) {
	body := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("Who kept the light? ", 100) + `"},{"role":"assistant","content":"` +
		strings.Repeat("words ", 10_000) + `"}],"model":"m"}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := affinity.Key(body); !ok {
			b.Fatal("no key")
		}
	}
}
