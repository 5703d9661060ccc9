package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
)

// repeated returns n elements between two brackets.
func repeated(open, element string, n int, end string) string {
	return open + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + end
}

// valueMembers are the members whose JSON becomes values of the chat template, with the value around a list.
var valueMembers = []struct{ name, before, after, param string }{
	{"chat_template_kwargs", `{"a":`, `}`, "chat_template_kwargs"},
	{"documents", `[{"title":"t","text":"x"}],"other":`, ``, ""},
	{"tools", `[{"type":"function","function":{"name":"f","parameters":{"a":`, `}}}]`, "tools"},
}

// valueCases: JSON that costs a router much more memory than its bytes, if nobody counts.
func valueCases() []testCase {
	var list []testCase
	shapes := []struct{ name, value string }{
		{"20 levels", strings.Repeat("[", 20) + strings.Repeat("]", 20)},
		{"1,000 numbers", repeated("[", "0", 1000, "]")},
		{"1,000 objects", repeated("[", "{}", 1000, "]")},
		{"1,000 equal keys", repeated("{", `"a":1`, 1000, "}")},
		{"long numbers", repeated("[", strings.Repeat("7", 300), 100, "]")},
		{"empty strings", repeated("[", `""`, 1000, "]")},
		{"a long string", `"` + strings.Repeat("é", 10_000) + `"`},
		{"escapes", `"` + strings.Repeat(`\ud83e\udd80`, 2000) + `"`},
	}
	for _, m := range valueMembers {
		for _, s := range shapes {
			list = append(list, post(s.name+" in "+m.name, chatPath, chatWith(m.name, m.before+s.value+m.after), 200, "*"))
		}
	}

	bombs := []struct{ name, open, element, end string }{
		{"numbers", "[", "0", "]"},
		{"empty objects", "[", "{}", "]"},
		{"empty arrays", "[", "[]", "]"},
		{"nulls", "[", "null", "]"},
		{"empty strings", "[", `""`, "]"},
		{"small objects", "[", `{"a":0}`, "]"},
		{"members of one object", "{", `"a":0`, "}"},
	}
	for _, size := range []int{1 << 20, 8 << 20, 15 << 20} {
		for _, b := range bombs {
			for _, m := range valueMembers {
				if m.param == "" {
					continue
				}
				c := postLarge(fmt.Sprintf("%d MB of %s in %s", size>>20, b.name, m.name), chatPath, func() []byte {
					return []byte(chatWith(m.name, m.before+repeated(b.open, b.element, size/(len(b.element)+1), b.end)+m.after))
				}, 400, m.param)
				list = append(list, c)
			}
		}
	}

	deep := func(name string, levels int, status int, param string) testCase {
		return post(name, chatPath, chatWith("chat_template_kwargs", `{"a":`+strings.Repeat("[", levels)+strings.Repeat("]", levels)+`}`),
			status, param)
	}
	list = append(list,
		deep("5,000 levels", 5000, 400, "*"),
		deep("100,000 levels", 100_000, 400, "*"),
		post("10,000 members of the arguments", chatPath, chatWith("chat_template_kwargs", "{"+members(10_000)+"}"), 200, "*"),
		post("arguments that replace the messages", chatPath, chatWith("chat_template_kwargs", `{"messages":[]}`), 400,
			"chat_template_kwargs"),
		post("documents of numbers", chatPath, chatWith("documents", `[{"title":1}]`), 400, "documents"),
		post("documents of words", chatPath, chatWith("documents", `["word"]`), 400, "documents"),
		post("no tools", chatPath, chatWith("tools", `[]`), 400, "tools"),
		post("a tool that is a number", chatPath, chatWith("tools", `[1]`), 400, "tools[0]"),
		post("a tool without a function", chatPath, chatWith("tools", `[{"type":"function"}]`), 400, "tools[0]"),
		post("a tool without a name", chatPath, chatWith("tools", `[{"type":"function","function":{}}]`), 400, "tools[0]"),
		post("parameters that are a word", chatPath,
			chatWith("tools", `[{"type":"function","function":{"name":"f","parameters":"p"}}]`), 400, "tools[0]"),
		post("a tool of another type", chatPath, chatWith("tools", `[{"type":"spell","function":{"name":"f"}}]`), 400, "tools[0]"),
	)
	return append(list, zipCases()...)
}

// members returns n different members of an object.
func members(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"k%d":%d`, i, i)
	}
	return b.String()
}

// zipped is a body compressed by gzip.
func zipped(body string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(body))
	_ = z.Close()
	return b.Bytes()
}

// zipCases: compressed bodies, which Envoy decompresses.
func zipCases() []testCase {
	bomb := func(name, pattern string, size int) testCase {
		c := postLarge(name, completionsPath, func() []byte {
			return zipped(`{"model":"sim","max_tokens":1,"prompt":"` + strings.Repeat(pattern, size/len(pattern)) + `"}`)
		}, 0, "*")
		c.want = []int{400, 413}
		c.headers = []string{"content-encoding", "gzip"}
		// The router must not see more than the largest body.
		c.cpu, c.bytes = cpuOfCase+16*cpuOfMiB, bytesOfCase+16*bytesOfMiB
		return c
	}
	good := post("a small body", completionsPath, "", 200, "")
	good.body = func() []byte { return zipped(`{"model":"sim","max_tokens":1,"prompt":"hi"}`) }
	good.headers = []string{"content-encoding", "gzip"}
	return []testCase{
		good,
		bomb("60 MB of one letter in 61 KB", "a", 60<<20),
		bomb("60 MB of spaces in 61 KB", " ", 60<<20),
		bomb("60 MB of words", "lorem ipsum ", 60<<20),
		bomb("300 MB of one letter", "a", 300<<20),
	}
}
