package breaks

import (
	"bytes"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/prompt"
)

const (
	maxLines    = 64
	maxHead     = 32 << 10 // bytes of the first segment that are cut into lines
	maxSegments = 128
	maxWords    = 32
	// maxRun is the greatest number of lines that differ at one place.
	maxRun = 3
	// leastTokens is the least number of equal tokens behind a place. Fewer are not worth a remedy.
	leastTokens = 256
	// leastAnchor is the least length of a line, in bytes, that names a family.
	leastAnchor = 32
	// tailBytes is the length of the end of the first segment that stands for the rest of it behind its lines, with the length of the rest.
	tailBytes = 1 << 10
)

// sketch is the part of a prompt that is kept.
type sketch struct {
	lines    [maxLines]uint32
	segments [maxSegments]uint32 // behind the first one
	words    [maxWords]uint32    // of the line number at
	rest     uint32              // of the first segment behind the lines
	nLines   uint8
	nSegs    uint8
	nWords   uint8
	at       int8 // the line that differed last; -1 for none
}

// reading is a prompt with its sketch.
type reading struct {
	sketch
	text   []byte // of the first segment
	tokens int    // of the first segment
	ends   [maxLines]int32
	parts  [maxSegments + 1]prompt.Segment
	nParts int
	anchor uint64 // hash of the longest line; 0 for none
}

// read makes the sketch of a prompt.
func (c *reading) read(p *prompt.Prompt, seed uint64) {
	c.text, c.tokens = p.Text, len(p.Tokens)
	c.nParts = len(p.AppendSegments(c.parts[:0], len(c.parts)))
	if c.nParts > 0 {
		c.tokens = c.parts[0].Tokens
		c.text = c.text[:min(len(c.text), c.parts[0].Bytes)]
		for _, s := range c.parts[1:c.nParts] {
			c.segments[c.nSegs] = s.Hash
			c.nSegs++
		}
	}

	longest, from := leastAnchor-1, 0
	head := c.text[:min(len(c.text), maxHead)]
	for int(c.nLines) < maxLines && from < len(head) {
		n := bytes.IndexByte(head[from:], '\n')
		if n < 0 {
			break
		}
		hash := xxh3.HashSeed(head[from:from+n], seed)
		if n > longest {
			longest = n
			c.anchor = hash
		}
		from += n + 1
		c.lines[c.nLines] = uint32(hash)
		c.ends[c.nLines] = int32(from)
		c.nLines++
	}

	rest := c.text[from:]
	c.rest = uint32(xxh3.HashSeed(rest[max(0, len(rest)-tailBytes):], seed+uint64(len(rest))))
}

// begin returns the byte at which a line begins.
func (c *reading) begin(line int) int {
	if line == 0 {
		return 0
	}
	return int(c.ends[line-1])
}

// line returns the text of a line.
func (c *reading) line(i int) []byte { return bytes.TrimRight(c.text[c.begin(i):c.ends[i]], "\n") }

// inTokens returns the number of tokens before a byte of the first segment. Tokens are taken to be equally long there.
func (c *reading) inTokens(at int) int {
	return int(int64(c.tokens) * int64(at) / int64(max(1, len(c.text))))
}

// difference is a place at which two prompts differ, and the end of the equal part behind it.
type difference struct {
	line int
	end  int // in tokens of the newer prompt
}

// compare finds the first place at which the lines of two prompts differ, where they go on alike for leastTokens or more.
func (c *reading) compare(old *sketch) (difference, bool) {
	lines := int(min(c.nLines, old.nLines))
	at := 0
	for at < lines && c.lines[at] == old.lines[at] {
		at++
	}

	// The first line that is the same again ends the place. It may be the text behind the last line.
	alike := c.nLines == old.nLines && c.rest == old.rest
	for next := at + 1; next <= min(at+maxRun, lines); next++ {
		if next < lines && c.lines[next] != old.lines[next] || next == lines && !alike {
			continue
		}
		from, to := c.begin(next), next
		for to < lines && c.lines[to] == old.lines[to] {
			to++
		}
		end := c.inTokens(c.begin(to))
		if to == lines && alike {
			end = c.tokens
			for i := 0; i < int(min(c.nSegs, old.nSegs)) && c.segments[i] == old.segments[i]; i++ {
				end = c.parts[i+1].Tokens
			}
		}
		return difference{at, end}, end-c.inTokens(from) >= leastTokens
	}
	return difference{}, false
}

// readWords sets the words of a line.
func (c *reading) readWords(line int, seed uint64) {
	c.at, c.nWords = int8(line), 0
	for w := range words(c.line(line)) {
		if int(c.nWords) == maxWords {
			return
		}
		c.words[c.nWords] = uint32(xxh3.HashSeed(w.text, seed))
		c.nWords++
	}
}

// keepWords takes the words of an older prompt over if their line is the same.
func (c *reading) keepWords(old *sketch) {
	c.at = old.at
	if c.at < 0 || int(c.at) >= int(c.nLines) || c.lines[c.at] != old.lines[c.at] {
		c.at = -1
		return
	}
	c.words, c.nWords = old.words, old.nWords
}

// differing returns the first word of a line that differs from the word at its place in an older prompt. Old has the words of that line.
func (c *reading) differing(line int, old *sketch) (word, bool) {
	i := 0
	for w := range words(c.line(line)) {
		if i == int(min(c.nWords, old.nWords)) {
			break
		}
		if c.words[i] != old.words[i] {
			w.at += c.begin(line)
			return w, true
		}
		i++
	}
	return word{}, false
}
