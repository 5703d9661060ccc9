package migrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// room is a budget.
type room struct{ left, used int }

func (r *room) Reserve(n int) bool {
	if r.used+n > r.left {
		return false
	}
	r.used += n
	return true
}

func (r *room) Free(n int) { r.used -= n }

// pieces are the bytes of the tokens of an answer: some characters take several tokens.
var pieces = []string{"Hello", ",", " w\xc3", "\xb6", "rld", " \xe4", "\xb8", "\x96", "\xf0\x9f", "\x98\x80", "\"\n", " \\", "x", "", "!"}

// engine writes the answer as vLLM does: text is held back while a character is incomplete. The ids of tokens are their places and
// 100, and each event has the next tokens, as many as each has.
func engine(chat bool, from int, each []int, usage bool) string {
	var b strings.Builder
	event := func(choice, more string) {
		id := "of-another"
		if from == 0 {
			id = "first"
		}
		fmt.Fprintf(&b, "data: {\"id\":%q,\"created\":%d,\"choices\":[%s]%s}\n\n", id, from, choice, more)
	}
	const prompt = `,"prompt_token_ids":[1,2,3]`
	if chat {
		event(`{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`, prompt)
	}
	held := ""
	first := !chat
	for i, n := from, 0; i < len(pieces); n++ {
		size := min(each[n%len(each)], len(pieces)-i)
		var ids []int
		text := ""
		for range size {
			held += pieces[i]
			ids = append(ids, 100+i)
			i++
			if utf8.ValidString(held) {
				text += held
				held = ""
			}
		}
		list, _ := json.Marshal(ids)
		quoted, _ := json.Marshal(text)
		finish := "null"
		if i == len(pieces) {
			finish = `"stop"`
		}
		choice := fmt.Sprintf(`{"index":0,"text":%s,"finish_reason":%s,"token_ids":%s`, quoted, finish, list)
		if chat {
			choice = fmt.Sprintf(`{"index":0,"delta":{"content":%s},"finish_reason":%s,"token_ids":%s`, quoted, finish, list)
		}
		if first {
			choice += prompt
		}
		first = false
		event(choice+"}", "")
	}
	if usage {
		event("", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, 3+from, 3+len(pieces), len(pieces)-from))
	}
	return b.String() + "data: [DONE]\n\n"
}

// run passes the bytes of a worker through the stream, and returns what the client gets.
func run(t *testing.T, s *Stream, bytesOf string, memory Memory) (got []byte, err error) {
	t.Helper()
	events := NewEvents(&few{strings.NewReader(bytesOf)}, memory)
	defer events.Free()
	for {
		for {
			raw, whole := events.Next()
			if raw == nil {
				break
			}
			got, err = s.Pass(got, raw, whole)
			if err != nil {
				return got, err
			}
		}
		if err := events.Fill(); err != nil {
			return got, nil
		}
	}
}

// few reads a few bytes at a time.
type few struct{ r io.Reader }

func (f *few) Read(p []byte) (int, error) { return f.r.Read(p[:min(len(p), 7)]) }

// answer is what a client reads from a stream.
type answer struct {
	text, finish string
	ids          []int
	heads        []string
	roles, total int
	done         bool
}

func read(t *testing.T, stream []byte) (a answer) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(string(stream), "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			t.Fatalf("%q in %q", event, stream)
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		var e struct {
			ID      string
			Created int
			Choices []struct {
				Text   string
				Delta  struct{ Role, Content string }
				IDs    []int  `json:"token_ids"`
				Finish string `json:"finish_reason"`
			}
			Usage struct {
				Prompt int `json:"prompt_tokens"`
				Total  int `json:"total_tokens"`
				Answer int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if e.Usage.Total > 0 {
			if e.Usage.Prompt != 3 || e.Usage.Answer != len(pieces) {
				t.Errorf("usage %+v", e.Usage)
			}
			a.total = e.Usage.Total
		}
		a.heads = append(a.heads, fmt.Sprint(e.ID, e.Created))
		for _, c := range e.Choices {
			a.text += c.Text + c.Delta.Content
			a.ids = append(a.ids, c.IDs...)
			a.finish += c.Finish
			if c.Delta.Role != "" {
				a.roles++
			}
		}
	}
	a.heads = slices.Compact(a.heads)
	return a
}

// from returns the number of tokens at the end of a continuation's prompt.
func from(t *testing.T, body []byte) int {
	t.Helper()
	var request struct {
		Prompt []int
		Most   *int `json:"max_tokens"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	n := len(request.Prompt) - 3
	for i, id := range request.Prompt[3:] {
		if id != 100+i {
			t.Fatalf("prompt %v", request.Prompt)
		}
	}
	if !utf8.ValidString(strings.Join(pieces[:n], "")) {
		t.Fatalf("the prompt of a continuation ends inside a character: after %d tokens", n)
	}
	return n
}

// TestEveryCut cuts a stream behind every byte, and its continuation behind every event. The client gets one whole stream.
func TestEveryCut(t *testing.T) {
	whole := strings.Join(pieces, "")
	for _, chat := range []bool{true, false} {
		for _, each := range [][]int{{1}, {1, 2}, {3}, {2, 1, 5}} {
			for _, wants := range []string{"", `,"return_token_ids":true`} {
				endpoint, body := openai.Completions, `{"model":"m","stream":true,"temperature":0,"prompt":"a","max_tokens":null`
				if chat {
					endpoint, body = openai.Chat, `{"model":"m","stream":true,"temperature":0,"messages":[{"role":"user","content":"a"}]`
				}
				r, why := Read(endpoint, []byte(body+wants+`,"stream_options":{"include_usage":true}}`), false)
				if r == nil {
					t.Fatal(why)
				}
				full := engine(chat, 0, each, true)
				for cut := strings.Index(full, "\n\n") + 2; cut <= len(full); cut++ {
					memory := &room{left: 1 << 20}
					s := NewStream(r, memory)
					got, err := run(t, s, full[:cut], memory)
					for turn := 1; err == nil && !s.Ended(); turn++ {
						if s.Finished() {
							got = s.Close(got)
							break
						}
						rest := s.Body()
						if rest == nil {
							t.Fatalf("cut at %d: %s", cut, s.Lost())
						}
						part := engine(false, from(t, rest), each, true)
						if events := strings.SplitAfter(part, "\n\n"); turn < 4 && len(events) > turn {
							part = strings.Join(events[:turn], "") + `data: {"id":`
						}
						var more []byte
						more, err = run(t, s, part, memory)
						got = append(got, more...)
					}
					s.Free()

					a := read(t, got)
					roles := 0
					if chat {
						roles = 1
					}
					if err != nil || a.text != whole || a.finish != "stop" || a.roles != roles || !a.done || a.total != 3+len(pieces) || len(a.heads) != 1 {
						t.Fatalf("chat %t, tokens %v, cut at %d of %q: %+v, %v\n%s", chat, each, cut, full[:cut], a, err, got)
					}
					ids := 0
					if wants != "" {
						ids = len(pieces)
					}
					if len(a.ids) != ids || wants == "" && bytes.Contains(got, []byte("token_ids")) {
						t.Fatalf("chat %t, tokens %v, cut at %d: ids %v\n%s", chat, each, cut, a.ids, got)
					}
					if memory.used != 0 {
						t.Fatalf("%d bytes are still reserved", memory.used)
					}
				}
			}
		}
	}
}

// TestLosses: streams that lose their promise are passed on as they are, without the ids.
func TestLosses(t *testing.T) {
	const begin = `data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}` + "\n\n"
	for _, c := range []struct {
		name, event string
		want        Loss
	}{
		{"no ids", `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}`, LostIDs},
		{"null ids", `data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":null}]}`, LostIDs},
		{"ids of another type", `data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":"1"}]}`, LostMalformed},
		{"a negative id", `data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[-1]}]}`, LostMalformed},
		{"a large id", `data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[99999999999999999999]}]}`, LostMalformed},
		{"a fraction", `data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1.5]}]}`, LostMalformed},
		{"nested ids", `data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[[1]]}]}`, LostMalformed},
		{"reasoning", `data: {"choices":[{"index":0,"delta":{"reasoning":"a"},"token_ids":[1]}]}`, LostDelta},
		{"a call", `data: {"choices":[{"index":0,"delta":{"tool_calls":[{}]},"token_ids":[1]}]}`, LostDelta},
		{"NUL", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\x00\"}}]}", LostMalformed},
		{"no JSON", `data: {"choices`, LostMalformed},
		{"two values", `data: {}{}`, LostMalformed},
		{"two choices", `data: {"choices":[{"index":0},{"index":1}]}`, LostMalformed},
		{"another choice", `data: {"choices":[{"index":1,"delta":{}}]}`, LostMalformed},
		{"another field", "event: a\ndata: {}", LostMalformed},
		{"two lines", "data: {}\ndata: {}", LostMalformed},
		{"deep", `data: {"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}", LostMalformed},
		{"many ids", `data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1` + strings.Repeat(",1", 1000) + "]}]}", LostRoom},
		{"large", `data: {"a":"` + strings.Repeat("a", 9<<10), LostLarge},
	} {
		r, _ := Read(openai.Chat, []byte(`{"model":"m","temperature":0,"return_token_ids":true,"messages":[{"role":"user","content":"a"}]}`), false)
		memory := &room{left: 4 << 10}
		s := NewStream(r, memory)
		stream := begin + c.event + "\n\ndata: [DONE]\n\n"
		got, err := run(t, s, stream, memory)
		if err != nil || s.Lost() != c.want || string(got) != stream || s.Body() != nil || !s.Ended() {
			t.Errorf("%s: lost by %q, want %q; ended %t, %v\n%.300s", c.name, s.Lost(), c.want, s.Ended(), err, got)
		}
		s.Free()
		if memory.used != 0 {
			t.Errorf("%s: %d bytes are still reserved", c.name, memory.used)
		}
	}
}

// TestBrokenEvents: an error of the engine in the stream, and an answer that it has given up, are failures, and not for the client.
func TestBrokenEvents(t *testing.T) {
	for _, event := range []string{
		`{"error":{"message":"EngineCore encountered an issue"}}`,
		`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"abort","token_ids":[5]}]}`,
	} {
		r, _ := Read(openai.Chat, []byte(`{"model":"m","temperature":0,"messages":[{"role":"user","content":"a"}]}`), false)
		s := NewStream(r, &room{left: 1 << 20})
		if got, err := s.Pass(nil, []byte("data: "+event+"\n\n"), true); err != nil || len(got) == 0 {
			t.Errorf("before the first tokens: %q, %v", got, err)
		}
		s = NewStream(r, &room{left: 1 << 20})
		if _, err := run(t, s, `data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1]}`+"\n\n", s.memory); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Pass(nil, []byte("data: "+event+"\n\n"), true); !errors.Is(err, ErrBroken) || len(got) > 0 {
			t.Errorf("%s: %q, %v", event, got, err)
		}
	}
}

// TestInside: a text that ends with U+FFFD may end inside a character, so the next continuation begins before it.
func TestInside(t *testing.T) {
	for text, want := range map[string]int{"b": 2, "\uFFFD": 1, `\ufffd`: 1, `b\uFFFD`: 1, "\uFFFDb": 2, `fffd`: 2, "": 1} {
		r, _ := Read(openai.Completions, []byte(`{"model":"m","temperature":0,"prompt":"a"}`), false)
		s := NewStream(r, &room{left: 1 << 20})
		for i, text := range []string{"a", text} {
			event := fmt.Sprintf(`data: {"choices":[{"index":0,"text":"%s","token_ids":[%d],"prompt_token_ids":[9]}]}`, text, i)
			if _, err := s.Pass(nil, []byte(event+"\n\n"), true); err != nil {
				t.Fatal(err)
			}
		}
		if s.safe-s.prompt != want {
			t.Errorf("%q: %d tokens are safe, want %d", text, s.safe-s.prompt, want)
		}
	}
}

// TestDiverged: a continuation with other tokens than those that the client has is no continuation.
func TestDiverged(t *testing.T) {
	r, _ := Read(openai.Completions, []byte(`{"model":"m","temperature":0,"prompt":"a"}`), false)
	s := NewStream(r, &room{left: 1 << 20})
	pass := func(event string) ([]byte, error) { return s.Pass(nil, []byte("data: "+event+"\n\n"), true) }
	for _, event := range []string{
		`{"id":"a","choices":[{"index":0,"text":"a","token_ids":[5],"prompt_token_ids":[1]}]}`,
		`{"id":"a","choices":[{"index":0,"text":"bc","token_ids":[6,7]}]}`,
	} {
		if _, err := pass(event); err != nil {
			t.Fatal(err)
		}
	}
	if body := string(s.Body()); !strings.Contains(body, `"prompt":[1,5],"max_tokens":15`) {
		t.Errorf("%s", body)
	}
	got, err := pass(`{"id":"b","choices":[{"index":0,"text":"b","token_ids":[6]}]}`)
	if err != nil || len(got) > 0 {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := pass(`{"id":"b","choices":[{"index":0,"text":"d","token_ids":[8]}]}`); !errors.Is(err, ErrDiverged) || len(got) > 0 {
		t.Errorf("%s, %v", got, err)
	}
}

// FuzzForm: an event that has the form of the one before is read as all others.
func FuzzForm(f *testing.F) {
	for _, list := range []string{"[1,2]", "[01]", "[1,,2]", "[]", "[1,]", "[ 1]", "[4294967296]", "[1]]", "null"} {
		for _, text := range []string{"a", `\"`, `\`, "\xff", "\n"} {
			f.Add([]byte(formed(text, "[7]")+": ping\n\n"+formed("a", "[8]")+formed(text, list)), 1000)
		}
	}
	begin, _, _ := strings.Cut(engine(true, 0, []int{1}, true), "\n\n")
	f.Fuzz(func(t *testing.T, rest []byte, left int) {
		r, _ := Read(openai.Chat, []byte(`{"model":"m","temperature":0,"messages":[{"role":"user","content":"a"}]}`), false)
		pass := func(changes int) string {
			memory := &room{left: left}
			s := NewStream(r, memory)
			s.form.changes = changes
			got, err := run(t, s, begin+"\n\n"+string(rest), memory)
			return fmt.Sprintf("%q, %v, %v, safe %d, tail %d, lost %q, finished %t", got, err, s.ids, s.safe, s.tail, s.lost, s.Finished())
		}
		want := pass(maxChanges) // no form is kept
		if got := pass(0); got != want {
			t.Errorf("with a form: %s; without: %s", got, want)
		}
	})
}

// formed returns an event with a text and ids as they are.
func formed(text, ids string) string {
	return `data: {"id":"a","choices":[{"index":0,"delta":{"content":"` + text + `"},"token_ids":` + ids + `,"finish_reason":null}]}` + "\n\n"
}

// FuzzStream passes any bytes as the events of an engine and of the one that continues. Nothing panics, all memory is given back, and a
// client that has asked for ids gets the first engine's whole events.
func FuzzStream(f *testing.F) {
	f.Add([]byte(engine(true, 0, []int{1}, true)), []byte(engine(false, 5, []int{1}, true)), 100)
	f.Add([]byte(engine(false, 0, []int{2, 1}, true)), []byte(engine(false, 2, []int{1}, true)), 300)
	f.Add([]byte("data: [DONE]\r\n\r\n: a\n\ndata:{}\n\n"), []byte("data: {\"choices\":[{}]}\n\n"), 10)
	f.Fuzz(func(t *testing.T, one, two []byte, left int) {
		r, _ := Read(openai.Chat, []byte(`{"model":"m","temperature":0,"return_token_ids":true,"messages":[{"role":"user","content":"a"}]}`), false)
		memory := &room{left: left}
		s := NewStream(r, memory)
		got, err := run(t, s, string(one), memory)
		if err == nil && !bytes.HasPrefix(one, got) {
			t.Errorf("%q from %q", got, one)
		}
		if s.Body() != nil {
			_, _ = run(t, s, string(two), memory)
		}
		s.Close(nil)
		s.Free()
		if memory.used != 0 {
			t.Errorf("%d bytes are still reserved", memory.used)
		}
	})
}
