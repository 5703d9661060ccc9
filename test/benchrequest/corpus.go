package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/stator-project/stator/test/lab/tracefiles"
)

// corpus is a ring of text, escaped for JSON, so that bodies are made by copying: the clients' work
// competes with the measured processes.
type corpus struct {
	name    string
	escaped []byte
	at      []uint32 // at[i] is the offset of character i in escaped; the last entry is its end
}

func newCorpus(name, text string) *corpus {
	c := &corpus{name: name}
	for _, r := range text {
		c.at = append(c.at, uint32(len(c.escaped)))
		c.escaped = appendEscaped(c.escaped, r)
	}
	c.at = append(c.at, uint32(len(c.escaped)))
	return c
}

// appendEscaped escapes as little as JSON allows, as OpenAI's clients do.
func appendEscaped(dst []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(dst, '\\', byte(r))
	case r == '\n':
		return append(dst, '\\', 'n')
	case r == '\r':
		return append(dst, '\\', 'r')
	case r == '\t':
		return append(dst, '\\', 't')
	case r < ' ':
		return fmt.Appendf(dst, `\u%04x`, r)
	}
	return utf8.AppendRune(dst, r)
}

// size is the number of characters.
func (c *corpus) size() int { return len(c.at) - 1 }

// append adds n characters from the given one on, going round at the end.
func (c *corpus) append(dst []byte, from, n int) []byte {
	for n > 0 {
		from %= c.size()
		k := min(n, c.size()-from)
		dst = append(dst, c.escaped[c.at[from]:c.at[from+k]]...)
		from, n = from+k, n-k
	}
	return dst
}

// load reads the text of the sessions in dir, or in the usual folders if dir is empty. It generates
// text if there is no such folder.
func load(dir string) (*corpus, error) {
	if dir == "" {
		dir, _ = tracefiles.Find("", tracefiles.Sessions)
	}
	if _, err := os.Stat(dir); dir == "" || errors.Is(err, fs.ErrNotExist) {
		return newCorpus("generated text (no agents' sessions are at hand)", generate()), nil
	}

	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("load traces: %s has no *.jsonl files", dir)
	}

	var text strings.Builder
	for _, path := range files {
		if err := addSession(&text, path); err != nil {
			return nil, fmt.Errorf("load traces: %s: %w", path, err)
		}
	}

	c := newCorpus(fmt.Sprintf("%d agent sessions of %s", len(files), dir), text.String())
	if c.size() < least {
		return nil, fmt.Errorf("load traces: %s holds %d characters, which is too little", dir, c.size())
	}
	return c, nil
}

// addSession adds the text of a session once: its longest prompt, which contains most of the others, and
// every answer.
func addSession(text *strings.Builder, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}

	defer func() { _ = f.Close() }()
	longest := ""
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)

	for n := 1; lines.Scan(); n++ {
		var row struct{ Input, Output string }
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if len(row.Input) > len(longest) {
			longest = row.Input
		}
		text.WriteString(row.Output)
	}

	text.WriteString(longest)
	return lines.Err()
}

// generate makes text like the text of coding agents: sentences, commands, paths, listings, code.
func generate() string {
	rng := rand.New(rand.NewPCG(3, 5))
	words := strings.Fields(`the file test class module returns error value when import path function should check call
		first line index update method field query option default request response config because model string number
		assert raise self None True object parser find replace pattern directory migration schema database backend`)
	word := func() string { return words[rng.IntN(len(words))] }
	phrase := func(n int, between string) string {
		var out []string
		for range n {
			out = append(out, word())
		}
		return strings.Join(out, between)
	}

	var b strings.Builder
	for b.Len() < 800_000 {
		switch rng.IntN(5) {
		case 0:
			fmt.Fprintf(&b, "THOUGHT: I need to %s. %s.\n\n", phrase(6+rng.IntN(12), " "), phrase(5+rng.IntN(20), " "))
		case 1:
			fmt.Fprintf(&b, "```bash\ngrep -rn \"%s\" %s.py | head -%d\n```\n", phrase(2, " "), phrase(3, "/"), rng.IntN(50))
		case 2:
			fmt.Fprintf(&b, "./%s.py:%d:    def %s(self, %s):\n", phrase(4, "/"), rng.IntN(2000), phrase(2, "_"), phrase(2, ", "))
		case 3:
			fmt.Fprintf(&b, "        if %s.%s != %d:\n            raise %s(\"%s\")\n", word(), word(), rng.IntN(100), word(),
				phrase(5, " "))
		case 4:
			fmt.Fprintf(&b, "-rw-r--r-- 1 root root %d Oct %d %02d:%02d %s.py\n", rng.IntN(90000), 1+rng.IntN(30), rng.IntN(24),
				rng.IntN(60), phrase(2, "_"))
		}
	}

	return b.String()
}
