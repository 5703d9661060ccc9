package main

import (
	"bytes"
	"fmt"
	"strings"
)

const maxBody = 16 << 20

// broken are JSON values that are wrong. The parser reads a whole body, so they are wrong in every place.
var broken = []struct{ name, value string }{
	{"nothing", ``},
	{"half a word", `tru`},
	{"a word in capitals", `True`},
	{"a bare word", `word`},
	{"a plus sign", `+1`},
	{"two signs", `--1`},
	{"a leading zero", `01`},
	{"no digit before the point", `.5`},
	{"no digit after the point", `1.`},
	{"no exponent", `1e`},
	{"hexadecimal", `0x10`},
	{"single quotes", `'text'`},
	{"an unknown escape", `"\x41"`},
	{"half an escape", `"\u12"`},
	{"a tab in a string", "\"a\tb\""},
	{"a NUL in a string", "\"a\x00b\""},
	{"invalid UTF-8", "\"\xff\""},
	{"an overlong encoding", "\"\xc0\xaf\""},
	{"a surrogate in UTF-8", "\"\xed\xa0\x80\""},
	{"a comma at the end of an array", `[1,]`},
	{"no comma", `[1 2]`},
	{"a comma at the end of an object", `{"a":1,}`},
	{"no value", `{"a"}`},
	{"a key without quotes", `{a:1}`},
	{"a comment", `/* one */ 1`},
	{"an array that is not closed", `[1`},
}

// places are positions of a value in a chat.
var places = []struct{ name, before, after string }{
	{"an unknown member", `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":1,"other":`, `}`},
	{"a message's unknown member", `{"model":"sim","messages":[{"role":"user","content":"hi","other":`, `}],"max_tokens":1}`},
	{"a tool's parameters", `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":1,"tools":[{"type":"function",` +
		`"function":{"name":"f","parameters":{"a":`, `}}}]}`},
	{"the template's arguments", `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":1,` +
		`"chat_template_kwargs":{"a":`, `}}`},
}

// jsonCases: a text that is not JSON is refused at its byte, wherever it is wrong.
func jsonCases() []testCase {
	var list []testCase
	for _, place := range places {
		for _, b := range broken {
			list = append(list, post(b.name+" as "+place.name, chatPath, place.before+b.value+place.after, 400, ""))
		}
	}
	chat := places[0].before + `1` + places[0].after

	list = append(list,
		post("an empty body", chatPath, ``, 400, ""),
		post("only spaces", chatPath, "  \n", 400, ""),
		post("an array", chatPath, `[1]`, 400, ""),
		post("two documents", chatPath, chat+chat, 400, ""),
		post("a byte order mark", chatPath, "\ufeff"+chat, 400, ""),
		post("UTF-16", chatPath, "{\x00\"\x00m\x00", 400, ""),
		post("cut off", chatPath, chat[:len(chat)-3], 400, ""),
		postLarge("1,000,000 open brackets", chatPath, func() []byte {
			return append([]byte(places[0].before), bytes.Repeat([]byte("["), 1_000_000)...)
		}, 400, ""),
		postLarge("16 MB of spaces", chatPath, func() []byte { return bytes.Repeat([]byte(" "), maxBody-1) }, 400, ""),
		postLarge("16 MB of an unknown string", chatPath, func() []byte {
			return []byte(places[0].before + `"` + strings.Repeat("x", maxBody-1000) + `"}`)
		}, 200, ""),
		postLarge("16 MB of escapes", chatPath, func() []byte {
			return []byte(places[0].before + `"` + strings.Repeat(`\u0041`, maxBody/6-100) + `"}`)
		}, 200, ""),
		postLarge("a body above the limit", chatPath, func() []byte {
			return fmt.Appendf(nil, "%s%q}", places[0].before, strings.Repeat("x", maxBody+1))
		}, 413, ""),
	)
	return list
}
