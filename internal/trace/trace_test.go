package trace

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// all returns all arrivals of a source.
func all(t testing.TB, next Source, err error) []Arrival {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var out []Arrival
	for {
		a, ok, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return out
		}
		out = append(out, a)
	}
}

// shared returns the length of the common prefix of two prompts, in tokens.
func shared(a, b Arrival) int {
	x, y := a.Prompt.Append(nil), b.Prompt.Append(nil)
	n := 0
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	return n
}

func TestDetectFormat(t *testing.T) {
	for head, want := range map[string]Format{
		`{"timestamp": 0, "input_length": 5`:                            FormatMooncake,
		"\n {\"hash_ids\":[1,2":                                         FormatMooncake,
		"TIMESTAMP,ContextTokens,GeneratedTokens\r\n":                   FormatAzure,
		"\xef\xbb\xbftimestamp,a,b":                                     FormatAzure,
		`{"timestamp": 1760428436442742, "input": "<pr_description>\nC`: FormatAgent,
		`{"meta": {"input_lengths": [1]}, "x": [[{}]], "input": "a"}`:   FormatAgent,
		`{"version":1,"format":"stator-decisions"}`:                     FormatDecisions, `{"decision":{"id"`: FormatDecisions,
		`{"id":"t","models":["m"],"block_size":64`: FormatWeka,
		`{"meta": {`: "", "": "", "[1]": "", "a,b": "", `{"a": 1}`: "",
	} {
		if got, err := DetectFormat([]byte(head)); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", head, got, err)
		}
	}
}

func TestAzureRowsAndGuessedSessions(t *testing.T) {
	const trace = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" +
		"2023-11-16 18:15:46.6805900,374,44\r\n" +
		"2023-11-16 18:15:50.9951690,500,0\r\n\r\n" + // long enough to contain the first row and its answer
		"2023-11-16 18:15:51.1000000,510,9\r\n" + // too soon after the second row
		"2024-05-10 00:00:00+00:00,9000,9" // another day
	plain := all(t, Azure(strings.NewReader(trace), false), nil)
	if len(plain) != 4 || plain[1].At.Truncate(time.Millisecond) != 4314*time.Millisecond || plain[1].Output != 1 || plain[0].Output != 44 {
		t.Fatalf("%+v", plain)
	}
	if n := shared(plain[0], plain[1]); n > 2 {
		t.Errorf("rows share %d tokens", n)
	}
	if n := len(plain[3].Prompt.Append(nil)); n != 9000 {
		t.Errorf("%d tokens", n)
	}
	guessed := all(t, Azure(strings.NewReader(trace), true), nil)
	if n := shared(guessed[0], guessed[1]); n != 374 || guessed[0].Session != guessed[1].Session {
		t.Errorf("the second row shares %d tokens with the first", n)
	}
	if n := shared(guessed[1], guessed[2]); n > 2 || guessed[2].Session == guessed[1].Session {
		t.Errorf("a row a tenth of a second later shares %d tokens", n)
	}
}

// words encodes each byte of a text as a token.
func words(dst []uint32, text string) []uint32 {
	for _, c := range []byte(text) {
		dst = append(dst, uint32(c))
	}
	return dst
}

func TestSessionsOfAFolder(t *testing.T) {
	folder := fstest.MapFS{
		"a/one.jsonl": {Data: []byte(`{"timestamp": 3000000, "input": "hello and more", "output": "ok", "session_id": "1"}
{"timestamp": 1000000, "input": "hello", "output": "", "session_id": "1"}
`)},
		"two.jsonl":  {Data: []byte(`{"timestamp": 2000000, "input": "bye", "output": "so", "session_id": "2"}`)},
		"other.json": {Data: []byte(`not a session`)},
	}
	read := func(cfg SessionConfig) []Arrival {
		cfg.Encode = words
		next, n, err := Sessions(folder, cfg)
		list := all(t, next, err)
		if n != len(list) {
			t.Errorf("%d rows, %d arrivals", n, len(list))
		}
		return list
	}
	list := read(SessionConfig{})
	var at []time.Duration
	for _, a := range list {
		at = append(at, a.At/time.Second)
	}
	if !slices.Equal(at, []time.Duration{1, 2, 3}) || shared(list[0], list[2]) != 5 || list[0].Output != 1 || list[2].Output != 2 {
		t.Errorf("%+v", list)
	}
	// An input that continues an earlier one adds its new part, after the answer.
	joined := read(SessionConfig{Join: true})
	if got := joined[2].Prompt.(text).text; got != "hello\n\n and more" {
		t.Errorf("%q", got)
	}
	// One at a time: the second session begins a second after the first one ends.
	if got := read(SessionConfig{Concurrent: 1}); got[2].Session != "2" || got[2].At != 3*time.Second {
		t.Errorf("%+v", got)
	}
}

func TestGeneratedArrivals(t *testing.T) {
	for _, arrivals := range []string{"constant", "poisson", "sinusoid", "bursts"} {
		g := Generated{Requests: 4000, Rate: 20, Arrivals: arrivals, Input: 500, Output: 20, Spread: 0.5, PrefixShare: 0.4, Prefixes: 1, Seed: 3}
		next, err := g.Source()
		list := all(t, next, err)
		next, err = g.Source()
		again := all(t, next, err)
		rate := float64(len(list)) / list[len(list)-1].At.Seconds()
		if len(list) != 4000 || math.Abs(rate/20-1) > 0.05 {
			t.Errorf("%s: %d arrivals, %.1f a second", arrivals, len(list), rate)
		}
		tokens := 0
		for i, a := range list {
			tokens += len(a.Prompt.Append(nil))
			if i > 0 && a.At < list[i-1].At || a.At != again[i].At || a.Output != again[i].Output {
				t.Fatalf("%s: arrival %d is at %v, after %v", arrivals, i, a.At, list[i-1].At)
			}
		}
		if mean := tokens / len(list); mean < 490 || mean > 510 {
			t.Errorf("%s: %d tokens on average", arrivals, mean)
		}
		if n := shared(list[0], list[1]); n < 200 || n > 202 {
			t.Errorf("%s: two prompts share %d tokens", arrivals, n)
		}
	}
	g := Generated{Requests: 64, Arrivals: "bursts", Identical: true}
	next, err := g.Source()
	list := all(t, next, err)
	if list[0].At != list[31].At || list[31].At == list[32].At || shared(list[0], list[31]) != 2000 || shared(list[31], list[32]) > 2 {
		t.Errorf("a burst of identical prompts: %v", list[:2])
	}
}

// TestErrorsNameTheLine reads broken traces of each format.
func TestErrorsNameTheLine(t *testing.T) {
	agent := func(s string) Source {
		next, _, err := SessionFile(strings.NewReader(s), SessionConfig{Encode: words})
		if err != nil {
			return func() (Arrival, bool, error) { return Arrival{}, false, err }
		}
		return next
	}
	moon := func(s string) Source { return Mooncake(strings.NewReader(s), 512) }
	azure := func(s string) Source {
		return Azure(strings.NewReader("TIMESTAMP,ContextTokens,GeneratedTokens\n"+s), true)
	}
	for _, c := range []struct {
		next Source
		want string
	}{
		{moon(`{"timestamp": -5, "input_length": 5}`), "line 1: timestamp -5"},
		{moon(`{"timestamp": 1e300, "input_length": 5}`), "line 1: timestamp 1e+300"},
		{moon(`{"timestamp": 0, "input_length": 99999999}`), "line 1: input_length 99999999"},
		{moon("{\"timestamp\": 0, \"input_length\": 5}\n\n{"), "line 3: unexpected end of JSON input"},
		{moon(strings.Repeat(" ", maxLine+1)), "line 1: it is too large: a line may have 16 MB"},
		{azure("2023-11-16,1,1"), "line 2: timestamp"},
		{azure("2023-11-16 18:15:46,1"), "line 2: 2 columns"},
		{azure("2023-11-16 18:15:46,0,1"), `line 2: ContextTokens "0"`},
		{azure("2023-11-16 18:15:46,1,1\n2020-11-16 18:15:46,1,1"), "line 3: timestamp 2020-11-16 18:15:46: it is before"},
		{agent(`{"timestamp": 0, "input": ""}`), "line 1: there is no input"},
		{agent(`{"timestamp": "x", "input": "a"}`), "line 1: json"},
	} {
		var err error
		for ok := true; ok && err == nil; {
			_, ok, err = c.next()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if _, _, err := Sessions(fstest.MapFS{"a.json": {}}, SessionConfig{}); err == nil || !strings.Contains(err.Error(), "there is no row") {
		t.Errorf("%v", err)
	}
}

// FuzzTrace checks that each row of any trace is refused, or has a prompt and an answer of bounded size
// at a time that a simulation can reach.
func FuzzTrace(f *testing.F) {
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"))
	f.Add([]byte(`{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}`))
	f.Add([]byte(`{"timestamp": 0, "input": "a", "output": "b", "session_id": "c"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = DetectFormat(data)
		read := func() *strings.Reader { return strings.NewReader(string(data)) }
		sources := []Source{Mooncake(read(), 512), Azure(read(), false), Azure(read(), true)}
		if next, _, err := SessionFile(read(), SessionConfig{Encode: words, Join: true, Concurrent: 2}); err == nil {
			sources = append(sources, next)
		}
		for _, next := range sources {
			for {
				a, ok, err := next()
				if !ok || err != nil {
					break
				}
				if a.Prompt == nil || a.Output < 1 || a.Output > maxRowTokens || a.At < 0 || a.At > 2*maxTraceTime {
					t.Fatalf("%+v", a)
				}
			}
		}
	})
}

// TestPromptsOfBlocks checks that a prompt of block ids has its length, and shares with another one the
// tokens of their common blocks.
func TestPromptsOfBlocks(t *testing.T) {
	a := Blocks{IDs: []uint64{1, 2, 3}, Size: 512, Length: 1100}.Append(nil)
	b := Blocks{IDs: []uint64{1, 2, 4}, Size: 512, Length: 1600}.Append(nil)
	if len(a) != 1100 || len(b) != 1600 || !slices.Equal(a[:1024], b[:1024]) || slices.Equal(a[1024:1030], b[1024:1030]) {
		t.Errorf("%d and %d tokens", len(a), len(b))
	}
	if slices.Equal(a[:512], a[512:1024]) {
		t.Error("two blocks are equal")
	}
}

// TestTakeAndList reads the first arrivals of a list.
func TestTakeAndList(t *testing.T) {
	list := []Arrival{{At: 1, Prompt: IDs{7}}, {At: 2}, {At: 3}}
	if got := all(t, Take(2, List(list)), nil); len(got) != 2 || got[1].At != 2 || got[0].Prompt.Append(nil)[0] != 7 {
		t.Errorf("%+v", got)
	}
	if got := all(t, Take(5, List(list)), nil); len(got) != 3 {
		t.Errorf("%+v", got)
	}
}
