package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

type message struct{ Role, Content string }

func messages(t *testing.T, body []byte) (out []message) {
	t.Helper()
	var v struct {
		Model    string
		Messages []message
	}
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if v.Model != "sim" {
		t.Fatalf("model is %q", v.Model)
	}
	return v.Messages
}

func chars(all []message) (n int) {
	for _, m := range all {
		n += utf8.RuneCountInString(m.Content)
	}
	return n
}

// Prompts have exactly the characters that were asked for, turns continue the known one, and
// nothing else is shared.
func TestDialogues(t *testing.T) {
	text := newCorpus("", generate()+"\t\"quoted\"\r\n\\ \x01 é 日本 🙂")
	firsts := map[string]bool{}
	for _, size := range []int{least, 1000, 4000, 32000} {
		for seed := range uint64(20) {
			d := dialogue{seedOf(1, size, seed%2 == 0, int(seed)), size}
			body := d.appendBody(nil, text, 1)
			known, last, other := messages(t, d.appendBody(nil, text, 0)), messages(t, body), messages(t, d.appendBody(nil, text, 2))
			if chars(last) != size || chars(other) != size || chars(known) != size-size*fresh/100 {
				t.Errorf("size %d: the turns have %d, %d and %d characters", size, chars(known), chars(last), chars(other))
			}
			if !reflect.DeepEqual(known, last[:len(known)]) || !reflect.DeepEqual(known, other[:len(known)]) {
				t.Errorf("size %d: a turn does not continue the known one", size)
			}
			if reflect.DeepEqual(last, other) {
				t.Errorf("size %d: two turns are the same", size)
			}
			if last[0].Role != "system" || known[len(known)-1].Role != "user" || last[len(last)-1].Role != "user" {
				t.Errorf("size %d: roles are %v", size, last)
			}
			if string(body) != string(d.appendBody(nil, text, 1)) {
				t.Errorf("size %d: not the same when made again", size)
			}
			if start := last[0].Content[:32]; firsts[start] {
				t.Errorf("size %d: two dialogues begin alike: %q", size, start)
			} else {
				firsts[start] = true
			}
		}
	}
}

func TestCorpus(t *testing.T) {
	const text = "a\"b\\c\n\r\t\x02\x1fé日🙂 "
	c := newCorpus("", text)
	var back string
	if err := json.Unmarshal([]byte(`"`+string(c.append(nil, 0, c.size()))+`"`), &back); err != nil || back != text {
		t.Errorf("%q came back as %q, %v", text, back, err)
	}
	round := string(newCorpus("", "abc").append(nil, 5, 8))
	if round != "cabcabca" {
		t.Errorf("going round gives %q", round)
	}
	if c, err := load(t.TempDir() + "/nothing"); err != nil || !strings.HasPrefix(c.name, "generated") || c.size() < 800_000 {
		t.Errorf("without traces: %v, %v", c, err)
	}
	if _, err := load(t.TempDir()); err == nil {
		t.Error("an empty folder of traces is no error")
	}
}
