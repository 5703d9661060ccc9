package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// promptTokens is the number of words in a prompt. Each is one token of the vocabulary builtin:sim.
const promptTokens = 1000

// shape describes the common beginnings of prompts: each prompt begins with one of some prefixes.
type shape struct {
	name             string
	prefixes, prefix int
}

var shapes = map[string]shape{
	"prefixes": {"prefixes", 200, promptTokens * 9 / 10},
	"shared":   {"shared", 1, promptTokens / 5},
}

var words = strings.Fields(`the file test class module returns error value when import path function should check call first line index
	update method field query option default request response config because model string number`)

// bodies returns the bodies of all requests of a run.
func (l *load) bodies(rng *rand.Rand, answer int) [][]byte {
	text := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte(' ')
			b.WriteString(words[rng.IntN(len(words))])
		}
		return b.String()
	}
	prefixes := make([]string, l.shape.prefixes)
	for i := range prefixes {
		prefixes[i] = text(l.shape.prefix)
	}

	list := make([][]byte, l.requests)
	for i := range list {
		list[i] = fmt.Appendf(nil, `{"model":"sim","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,`+
			`"messages":[{"role":"user","content":"%s"}]}`, answer, prefixes[rng.IntN(len(prefixes))]+text(promptTokens-l.shape.prefix))
	}
	return list
}
