package breaks

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestKinds reads the kinds of words in lines. The word is the one in brackets.
func TestKinds(t *testing.T) {
	for line, want := range map[string]Kind{
		"x-anthropic-billing-header: cc_version=2.1.37; cch=[a1b2c];": Hash,
		"Request id: [req_011CUxyz9]":                                 Hash,
		"Trace [0af7651916cd43dd8448eb211c80319c]":                    Hash,
		"Session: [3f2504e0-4f89-11d3-9a0c-0305e82c3301]":             UUID,
		"Today's date is [2026-11-26].":                               Date,
		"Today's date: [11/26/2026]":                                  Date,
		"Today Date: [26] Nov 2026":                                   Date,
		"It is [Thursday], the 26th":                                  Date,
		"Now: [2026-11-26T20:09:54Z]":                                 Time,
		"It is [20:09:54] here":                                       Time,
		"It is [8:09pm] here":                                         Time,
		"User [4711]":                                                 Number,
		"Balance: [12.50] EUR":                                        Number,
		"You assist [Alice].":                                         Other,
		"You assist [m2].":                                            Other,
		"In the folder [/home/al1ce/été]":                             Other,
	} {
		before, rest, _ := strings.Cut(line, "[")
		text, after, _ := strings.Cut(rest, "]")
		whole := before + text + after
		found := false
		for w := range words([]byte(whole)) {
			if w.at <= len(before) && len(before) < w.at+len(w.text) {
				found = true
				if got := kindOf(w.text, []byte(whole)); got != want {
					t.Errorf("%s: %v, want %v", line, got, want)
				}
			}
		}
		if !found {
			t.Errorf("%s has no such word", line)
		}
	}
}

// agent prepares prompts of an agent: a system prompt of many lines and a conversation that grows.
type agent struct {
	model  *prompt.Model
	prompt prompt.Prompt
	system string
	at     time.Time
}

func newAgent(t testing.TB, memory int64) *agent {
	m, err := prompt.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{model: m.WithMemory(prompt.NewMemory(prompt.MemoryConfig{MaxBytes: memory, Seed: 5})), at: time.Unix(1_000_000, 0)}
	var text strings.Builder
	for i := range 120 {
		fmt.Fprintf(&text, "%s rule number %d of the agent, which it must always follow.\n", strings.Repeat("very ", i%7), i)
	}
	a.system = text.String()
	return a
}

// request prepares a request whose system prompt begins with head, after so many turns.
func (a *agent) request(t testing.TB, session uint64, head string, turns int) *Request {
	messages := []openai.Message{{Role: "system", Kind: openai.TextContent, Content: head + a.system}}
	for i := range turns {
		role := []string{"user", "assistant"}[i%2]
		messages = append(messages, openai.Message{
			Role: role, Kind: openai.TextContent, Content: fmt.Sprintf("turn %d of session %d: %s", i, session, strings.Repeat("some more text ", 40)),
		})
	}
	chat := openai.Conversation{Messages: messages, AddGenerationPrompt: true}
	if err := a.model.Prepare(&prompt.Request{Endpoint: prompt.Chat, Conversation: chat}, &a.prompt); err != nil {
		t.Fatal(err)
	}
	a.at = a.at.Add(time.Second)
	return &Request{Model: "m", Session: session, Prompt: &a.prompt, Messages: messages, At: a.at}
}

// TestPlaceOfABillingHeader finds the header of Claude Code, which differs in every request of a session, if an engine keeps it.
func TestPlaceOfABillingHeader(t *testing.T) {
	a, w := newAgent(t, 8<<20), New(1)
	const before = "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch="
	var want uint64
	for i := range 10 {
		r := a.request(t, 7, "Agent\n"+before+fmt.Sprintf("%05x", 0xa1b2c+i*4097)+";\n", 1+2*i)
		w.Observe(r)
		if i < 2 {
			continue // the first has none to differ from, and the second one shows the line
		}
		last := a.request(t, 7, "", 1+2*(i-1)) // the equal part, without the end that asks for an answer
		want += uint64(len(last.Prompt.Tokens))
	}
	found := w.Found(a.at)
	if len(found) != 1 {
		t.Fatalf("%+v", found)
	}
	p := found[0]
	if p.Kind != Hash || p.Role != "system" || p.Message != 0 || p.Character != len("Agent\n"+before) || p.Broken != 8 || p.Model != "m" {
		t.Errorf("%+v", p)
	}
	if p.Token < 10 || p.Token > 60 || p.Share < 0.5 || p.Share > 1 {
		t.Errorf("token %d, share %v", p.Token, p.Share)
	}
	if difference := float64(p.Tokens)/float64(want) - 1; difference < -0.05 || difference > 0.05 {
		t.Errorf("%d tokens were computed again, want about %d", p.Tokens, want)
	}
	if rate, seen := p.TokensPerSecond(p.First.Add(time.Hour)), float64(p.Tokens)/3600; rate != seen {
		t.Errorf("%v tokens per second, want %v", rate, seen)
	}
}

// TestRoleIsKept writes over the role of a message after the request, as the next request does in the memory of a body. Roles that templates
// do not know, which a client may choose, become other.
func TestRoleIsKept(t *testing.T) {
	for role, want := range map[string]string{"system": "system", "developer": "developer", "\x1b[2J": "other", strings.Repeat("x", 1<<16): "other"} {
		a, w := newAgent(t, 8<<20), New(1)
		for i := range 8 {
			r := a.request(t, 7, fmt.Sprintf("The time is 20:%02d.\n", i), 1+i)
			memory := []byte(role)
			r.Messages[0].Role = unsafe.String(unsafe.SliceData(memory), len(memory))
			w.Observe(r)
			for j := range memory {
				memory[j] = '#'
			}
		}
		found := w.Found(a.at)
		if len(found) != 1 || found[0].Role != want {
			t.Errorf("%.20q: found %+v, want one place of the role %s", role, found, want)
		}
	}
}

// TestPlaces has changing texts of some kinds at some places.
func TestPlaces(t *testing.T) {
	sessions := func(i int) uint64 { return uint64(i + 1) } // a new one in each request
	one := func(int) uint64 { return 1 }
	none := func(int) uint64 { return 0 }
	minute := func(i int) string { return fmt.Sprintf("The time is 20:%02d.\n", i) }
	for _, tt := range []struct {
		name    string
		head    func(i int) string
		session func(i int) uint64
		memory  int64
		want    string // kind, role and character; empty for none
	}{
		{"times in new sessions", minute, sessions, 8 << 20, "time system 12"},
		{"times without sessions", minute, none, 8 << 20, "time system 12"},
		{"times without a memory of prompts", minute, none, 0, "time system 12"},
		{"a uuid behind umlauts", func(i int) string { return fmt.Sprintf("Größe\nid 3f2504e0-4f89-11d3-9a0c-%012x\n", i) }, sessions, 8 << 20,
			"uuid system 9"},
		{"hexadecimal digits, some without letters", func(i int) string {
			return "client: cc_version=2.1.39; cch=" + []string{"56445", "4873d", "eb6c6", "00120"}[i%4] + ";\n"
		}, one, 8 << 20, "hash system 31"},
		{"names in a session", func(i int) string { return "Speak like " + strings.Repeat("x", i+1) + ".\n" }, one, 8 << 20, "other system 11"},
		{"names of users", func(i int) string { return "Speak like " + strings.Repeat("x", i+1) + ".\n" }, sessions, 8 << 20, ""},
		{"nothing differs", func(int) string { return "" }, one, 8 << 20, ""},
		{"more and more lines", func(i int) string { return strings.Repeat("a line\n", i) }, one, 8 << 20, ""},
		{"two system prompts in a session", func(i int) string { return strings.Repeat("line of another agent with tools\n", 40*(i%2)) }, one, 8 << 20, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, w := newAgent(t, tt.memory), New(1)
			for i := range 8 {
				w.Observe(a.request(t, tt.session(i), tt.head(i), 1+i))
			}
			got := ""
			for _, p := range w.Found(a.at) {
				got += fmt.Sprint(p.Kind, " ", p.Role, " ", p.Character)
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestNothingIsLost: tokens that a rank has in its cache cost nothing, and a session that was compacted or edited in the middle has no place.
func TestNothingIsLost(t *testing.T) {
	a, w := newAgent(t, 8<<20), New(1)
	for i := range 8 {
		r := a.request(t, 1, fmt.Sprintf("Version %d\n", i%2), 3)
		r.Cached = len(r.Prompt.Tokens) / 16 * 16
		w.Observe(r)
	}
	for i := range 8 {
		r := a.request(t, 2, "", 9)
		w.Observe(r)
		r = a.request(t, 2, "", 3+i) // shorter than before
		w.Observe(r)
	}
	for i := range 8 {
		r := a.request(t, 3, fmt.Sprintf("Version %d\n", i), 3)
		r.At = r.At.Add(time.Duration(i) * 2 * time.Hour) // the one before has left the caches
		w.Observe(r)
	}
	if found := w.Found(a.at); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

// TestSaltsAreFamilies: prompts with different salts share no blocks, so they are not compared.
func TestSaltsAreFamilies(t *testing.T) {
	a, w := newAgent(t, 8<<20), New(1)
	for i := range 8 {
		r := a.request(t, 1, fmt.Sprintf("Version %d\n", i), 3)
		r.Seed = uint64(i)
		w.Observe(r)
	}
	if found := w.Found(a.at); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

// TestBounds has more families, sessions and places than are kept.
func TestBounds(t *testing.T) {
	a, w := newAgent(t, 8<<20), New(1)
	for i := range 3 * shards * perShard {
		r := a.request(t, uint64(i+1), "", 1)
		r.Seed = uint64(i)
		w.Observe(r)
	}
	for i := range w.shards {
		if n := len(w.shards[i].families); n > perShard {
			t.Errorf("a shard has %d families", n)
		}
	}
	for place := range 2 * maxPlaces {
		for i := range 2 + leastBroken {
			r := a.request(t, 0, fmt.Sprintf("Version %d\n", i), 1)
			r.Model, r.Seed = fmt.Sprint(place), 1<<40+uint64(place)
			w.Observe(r)
		}
	}
	if n := len(w.Found(a.at)); n != maxPlaces {
		t.Errorf("%d places, want %d", n, maxPlaces)
	}
	if n := len(w.Found(a.at.Add(forgetAfter + time.Minute))); n != 0 {
		t.Errorf("%d places of mended clients", n)
	}
}

// BenchmarkObserve: what does the watch cost beside the tokenizer? The prompts have a system prompt of 120 lines and 40 turns. With broken
// each one differs from the one before in its first line; with new each one is of a new family.
//
//	go test -run - -bench Observe ./internal/route/breaks
func BenchmarkObserve(b *testing.B) {
	for _, kind := range []string{"same", "broken", "new"} {
		b.Run("prompts="+kind, func(b *testing.B) {
			a, w := newAgent(b, 8<<20), New(1)
			requests := make([]*Request, 8)
			prompts := make([]prompt.Prompt, len(requests))
			for i := range requests {
				head := "Version 1\n"
				if kind == "broken" {
					head = fmt.Sprintf("Version %d\n", i)
				}
				requests[i] = a.request(b, 1, head, 40)
				prompts[i], a.prompt = a.prompt, prompt.Prompt{}
				requests[i].Prompt = &prompts[i]
			}
			for i := range 4 * shards * perShard {
				requests[0].Seed = uint64(i)
				w.Observe(requests[0])
			}
			requests[0].Seed = 0
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				r := requests[n%len(requests)]
				if kind == "new" {
					r.Seed = uint64(1e6 + n)
				}
				w.Observe(r)
			}
		})
	}
}
