package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// addedToken is a token that is searched for in the text before the pre-tokenizer splits it. It has
// the fields of tokenizer.json.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// matcher finds added tokens in a text: the leftmost first, and of tokens that begin at one place the
// longest. It is a trie that is walked from each byte with which a token begins. An automaton would visit
// each byte only once, but tokens are short, so that even text full of such bytes costs only a small factor.
type matcher struct {
	tokens []addedToken
	nodes  []node
	first  [256]bool
	// oneFirstByte is set if all tokens begin with the same byte, firstByte; usually that is "<". The
	// search then uses the fast strings.IndexByte.
	firstByte    byte
	oneFirstByte bool
}

// node is a node of the trie: the text on the path from the root.
type node struct {
	edges []edge // sorted by byte
	token int    // index in tokens of the token with this text, -1 for none
}

// edge leads to the node whose text is one byte longer.
type edge struct {
	byte byte
	node int32
}

func newMatcher() *matcher { return &matcher{nodes: []node{{token: -1}}} }

func (m *matcher) empty() bool { return len(m.tokens) == 0 }

// addToken adds a token to the trie. Pattern is the text to search for: the token's content, or its normalized content if the
// search runs on normalized text.
func (m *matcher) addToken(token addedToken, pattern string) error {
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
		return fmt.Errorf("added tokens %q and %q have the same text", m.tokens[m.nodes[at].token].Content, token.Content)
	}

	m.nodes[at].token = len(m.tokens)
	m.tokens = append(m.tokens, token)
	m.first[pattern[0]] = true
	m.oneFirstByte = len(m.nodes[0].edges) == 1
	m.firstByte = pattern[0]
	return nil
}

// findToken returns the first token in s at or after i, with its start and end.
// Token is nil if there is none.
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

// longestAt returns the longest token with which s begins, and its length in bytes. Token is
// nil if s begins with no token.
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

// split calls onToken for each added token in s and onText for each text between tokens, in order. A token
// with LStrip or RStrip includes the white space beside it. A single-word token inside a word counts as
// text, and the search continues after it, as in the reference.
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
			// The end of the last white space is kept, so that many tokens inside one run of white
			// space do not scan the run many times.
			if end < spaceFrom || end > spaceTo {
				spaceFrom, spaceTo = end, skipWhile(s, end, space)
			}
			end = spaceTo
		}
		if done < start {
			onText(s[done:start])
		}
		// A token that consists of white space may be empty here, because the token before it has
		// stripped it. The reference drops such a token.
		if start < end {
			onToken(token.ID)
		}
		done = end
	}

	if done < len(s) {
		onText(s[done:])
	}
}

// match is an added token with its place in a text.
type match struct {
	start, end int
	token      *addedToken
}

// splitLongest is split by the rules of llama.cpp, which searches the whole text for longer tokens before
// shorter ones. The result differs from the leftmost-longest search only if a longer token begins inside a
// match. Only such a text is searched again, with matchesByLength, which is slow. Matches is scratch space; it
// is returned for the next call.
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

// longerInside reports whether a token that is longer than s[start:end] begins inside s[start:end].
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

// matchesByLength searches s for the tokens of each length, the greatest length first, from left to right.
// A byte that belongs to a longer token cannot belong to a shorter one.
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

// tokenEqualTo returns the token whose pattern is s, or nil.
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

// endsWithWordChar reports whether the last character of s belongs to a word.
func endsWithWordChar(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && wordChar(r)
}

// beginsWithWordChar reports whether the first character of s belongs to a word.
func beginsWithWordChar(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && wordChar(r)
}

func trimSpaceRight(s string) string {
	return strings.TrimRightFunc(s, func(r rune) bool { return classOf(r)&space != 0 })
}
