package sessionid

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// read returns the name of a body's session by a list, and the index of its source.
func read(list []Source, header Name, body string) Name {
	n := header
	_ = openai.EachMember([]byte(body), func(name string, from, to int) {
		n.Read(list, name, openai.MemberValue([]byte(body)[from:to]))
	})
	return n
}

// TestFirstSourceCounts checks which name counts of a request that has several, whatever their order in the body.
func TestFirstSourceCounts(t *testing.T) {
	list := ParseAll([]string{"body:a", "header:X-S", "body:b.c", "body:d"})
	if names := Headers(list); strings.Join(names, ",") != ",x-s,," {
		t.Errorf("headers %q", names)
	}
	for _, c := range []struct {
		header Name
		body   string
		want   Name
	}{
		{Name{}, `{}`, Name{}},
		{Name{"h", 1}, `{}`, Name{"h", 1}},
		{Name{"h", 1}, `{"d":"1","b":{"c":"2"}}`, Name{"h", 1}},
		{Name{"h", 1}, `{"d":"1","a":"2"}`, Name{"2", 0}},
		{Name{}, `{"d":"1","b":{"c":"2"}}`, Name{"2", 2}},
		{Name{}, `{"b":{"c":"2"},"d":"1"}`, Name{"2", 2}},
		{Name{}, `{"d":"1","d":"2"}`, Name{"2", 3}},
		{Name{}, `{"b":{"c":"1","c":"2"}}`, Name{"2", 2}},
		{Name{}, `{"a":7,"b":"c","d":""}`, Name{}},
		{Name{}, `{"b":{"c":["x"]},"d":null}`, Name{}},
		{Name{}, `{"\u0061" : "caf\u00e9 \u007b"}`, Name{"café {", 0}},
	} {
		if got := read(list, c.header, c.body); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.body, got, c.want)
		}
	}
}

// TestNamesOfClients checks the members that clients send by default.
func TestNamesOfClients(t *testing.T) {
	list := ParseAll(Defaults())
	if len(list) != len(Defaults()) {
		t.Fatal("a default is wrong")
	}
	for body, want := range map[string]string{
		`{"prompt_cache_key":"0197-codex","user":"u"}`:             "0197-codex",
		`{"safety_identifier":"u1"}`:                               "u1",
		`{"user":"everyone"}`:                                      "",
		`{"metadata":{"user_id":"user_1f_account_2a_session_3b"}}`: "user_1f_account_2a_session_3b",
		`{"nvext":{"agent_hints":{"osl":9},"agent_context":{"session_id":"run","parent_id":"p"}}}`: "run",
		`{"nvext":{"session_control":{"session_id":"s","action":"open"}}}`:                         "s",
		`{"prompt_cache_key":"k","session_id":"v"}`:                                                "v",
	} {
		n := read(list, Name{}, body)
		if n.Text != want {
			t.Errorf("%s: %q, want %q", body, n.Text, want)
		}
		if known := n.IsKnownToEngine(list); known != (want == "" || want == "v") {
			t.Errorf("%s: known to the engine: %v", body, known)
		}
	}
	header := Name{"h", 0}
	if !header.IsKnownToEngine(list) {
		t.Error("the engine's own header is not known to it")
	}
}

// TestLongNames: a long name becomes a hash, so equal names stay equal, and one without bound is none.
func TestLongNames(t *testing.T) {
	list := ParseAll([]string{"body:s"})
	of := func(n int, end string) string {
		return read(list, Name{}, `{"s":"`+strings.Repeat("x", n)+end+`"}`).Text
	}
	if got := of(256, ""); len(got) != 256 {
		t.Errorf("256 bytes: %q", got)
	}
	if a, b := of(300, "a"), of(300, "b"); len(a) != 18 || a == b || a != of(300, "a") {
		t.Errorf("300 bytes: %q and %q", a, b)
	}
	if got := of(1<<20, ""); got != "" {
		t.Errorf("a MiB: %q", got)
	}
}

// TestParse checks the texts that are refused.
func TestParse(t *testing.T) {
	for _, text := range []string{"", "x-session-id", "header:", "body:", "body:a..b", "body:a.b.c.d.e", "cookie:a"} {
		if s, err := Parse(text); err == nil || !strings.Contains(err.Error(), "write header:NAME or body:MEMBER") {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

// TestHeaderValues: a name that would end a header is not written into one.
func TestHeaderValues(t *testing.T) {
	for name, want := range map[string]string{"a b": "a b", "h:0123": "h:0123", "a\r\nx: y": "", "café": "", " a ": "a", "": ""} {
		if got := HeaderValue(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// FuzzRead: no body makes a name that is too long, and a name is the same each time.
func FuzzRead(f *testing.F) {
	f.Add(`{"metadata":{"user_id":"u"},"nvext":{"agent_context":{"session_id":"\u0000"}}}`)
	list := ParseAll(Defaults())
	f.Fuzz(func(t *testing.T, body string) {
		n := read(list, Name{}, body)
		if len(n.Text) > 256 || n != read(list, Name{}, body) || n.Text != "" && len(list[n.At].Member) == 0 {
			t.Errorf("%+v", n)
		}
		if v := HeaderValue(n.Text); strings.ContainsAny(v, "\r\n\x00") {
			t.Errorf("header %q", v)
		}
	})
}
