package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// addedToken is a token that is found in text before the pre-tokenizer sees it.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// matcher finds added tokens: leftmost, and of those that begin at one place the longest. A
// trie that is walked from each possible first byte: tokens are short, so that text of
// nothing but first bytes costs a small factor, and no automaton has to be built.
type matcher struct {
	tokens []addedToken
	nodes  []node
	first  [256]bool
	// only is the one byte that tokens begin with ("<", as a rule), and lets a fast search
	// skip over the text; single says that there is only one.
	firstByte    byte
	oneFirstByte bool
}

type node struct {
	edges []edge // sorted
	token int    // index in tokens, -1 for none
}

type edge struct {
	byte byte
	node int32
}

func newMatcher() *matcher { return &matcher{nodes: []node{{token: -1}}} }

func (m *matcher) empty() bool { return len(m.tokens) == 0 }

// add adds a token that is found as pattern.
func (m *matcher) add(token addedToken, pattern string) error {
	at := int32(0)
	for i := range len(pattern) {
		edges := m.nodes[at].edges
		k, found := slices.BinarySearchFunc(edges, pattern[i], func(e edge, b byte) int { return int(e.byte) - int(b) })
		if !found {
			m.nodes = append(m.nodes, node{token: -1})
			m.nodes[at].edges = slices.Insert(edges, k, edge{pattern[i], int32(len(m.nodes) - 1)})
		}
		at = m.nodes[at].edges[k].node
	}

	if m.nodes[at].token >= 0 {
		return fmt.Errorf("added tokens %q and %q are the same text", m.tokens[m.nodes[at].token].Content, token.Content)
	}

	m.nodes[at].token = len(m.tokens)
	m.tokens = append(m.tokens, token)
	m.first[pattern[0]] = true
	m.oneFirstByte = len(m.nodes[0].edges) == 1
	m.firstByte = pattern[0]
	return nil
}

// find is the first match in s at or after i: where it begins and ends, and whose it is.
func (m *matcher) findToken(s string, i int) (start, end int, token *addedToken) {
	for ; i < len(s); i++ {
		if m.oneFirstByte {
			k := strings.IndexByte(s[i:], m.firstByte)
			if k < 0 {
				break
			}
			i += k
		} else if !m.first[s[i]] {
			continue
		}
		if n, token := m.longestAt(s[i:]); token != nil {
			return i, i + n, token
		}
	}
	return len(s), len(s), nil
}

func (m *matcher) longestAt(s string) (n int, token *addedToken) {
	at := &m.nodes[0]
	for i := range len(s) {
		next := int32(-1)
		for _, e := range at.edges {
			if e.byte == s[i] {
				next = e.node
				break
			}
		}
		if next < 0 {
			break
		}
		at = &m.nodes[next]
		if at.token >= 0 {
			n, token = i+1, &m.tokens[at.token]
		}
	}

	return n, token
}

// split calls gap for each stretch of s between added tokens and found for each token, in
// order. A token that strips takes the white space beside it; a token that must be a word of
// its own and is not is text, and the search goes on behind it, as in the reference.
func (m *matcher) split(s string, onText func(string), onToken func(uint32)) {
	done := 0
	spaceFrom := 0
	spaceTo := -1
	for i := 0; i < len(s); {
		start, end, token := m.findToken(s, i)
		if token == nil {
			break
		}
		i = end
		if token.SingleWord && (endsWithWordChar(s[:start]) || beginsWithWordChar(s[end:])) {
			continue
		}
		if token.LStrip {
			start = done + len(trimSpaceRight(s[done:max(start, done)]))
		}
		if token.RStrip {
			if end < spaceFrom || end > spaceTo { // else in white space whose end is known
				spaceFrom, spaceTo = end, skipWhile(s, end, space)
			}
			end = spaceTo
		}
		if done < start {
			onText(s[done:start])
		}
		if start < end { // else a token before has taken it for space, and the reference drops it
			onToken(token.ID)
		}
		done = end
	}

	if done < len(s) {
		onText(s[done:])
	}
}

// match is a token that was found in a text.
type match struct {
	start, end int
	token      *addedToken
}

// splitLongest is split as llama.cpp does it: longer tokens are found before shorter ones,
// wherever they stand. That differs from leftmost-longest only where a longer token begins
// inside a match; then the text is searched once more, length by length. Matches is scratch
// space, which is returned.
func (m *matcher) splitLongest(s string, matches []match, onText func(string), onToken func(uint32)) []match {
	matches = matches[:0]
	for i := 0; i < len(s); {
		start, end, token := m.findToken(s, i)
		if token == nil {
			break
		}
		if m.longerInside(s, start, end) {
			matches = m.matchesByLength(s)
			break
		}
		matches = append(matches, match{start, end, token})
		i = end
	}

	done := 0
	for _, f := range matches {
		if done < f.start {
			onText(s[done:f.start])
		}
		onToken(f.token.ID)
		done = f.end
	}

	if done < len(s) {
		onText(s[done:])
	}
	return matches
}

// longerInside says whether a token longer than s[start:end] begins inside it.
func (m *matcher) longerInside(s string, start, end int) bool {
	for i := start + 1; i < end; i++ {
		if m.first[s[i]] {
			if n, _ := m.longestAt(s[i:]); n > end-start {
				return true
			}
		}
	}
	return false
}

// byLength finds tokens length by length, the longest first, each from left to right in what
// is left of the text.
func (m *matcher) matchesByLength(s string) (matches []match) {
	var lengths []int
	for i := range m.tokens {
		lengths = append(lengths, len(m.tokens[i].Content))
	}
	slices.Sort(lengths)

	lengths = slices.Compact(lengths)
	free := slices.Repeat([]bool{true}, len(s))
	for _, n := range slices.Backward(lengths) {
		for i := 0; i+n <= len(s); i++ {
			if !free[i] || !m.first[s[i]] || slices.Contains(free[i:i+n], false) {
				continue
			}
			if token := m.tokenEqualTo(s[i : i+n]); token != nil {
				matches = append(matches, match{i, i + n, token})
				for k := i; k < i+n; k++ {
					free[k] = false
				}
				i += n - 1
			}
		}
	}

	slices.SortFunc(matches, func(a, b match) int { return a.start - b.start })
	return matches
}

// exactly is the token that is s.
func (m *matcher) tokenEqualTo(s string) *addedToken {
	at := int32(0)
	for i := range len(s) {
		k, ok := slices.BinarySearchFunc(m.nodes[at].edges, s[i], func(e edge, b byte) int { return int(e.byte) - int(b) })
		if !ok {
			return nil
		}
		at = m.nodes[at].edges[k].node
	}

	if m.nodes[at].token < 0 {
		return nil
	}
	return &m.tokens[m.nodes[at].token]
}

func endsWithWordChar(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && wordChar(r)
}

func beginsWithWordChar(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && wordChar(r)
}

func trimSpaceRight(s string) string {
	return strings.TrimRightFunc(s, func(r rune) bool { return classOf(r)&space != 0 })
}
