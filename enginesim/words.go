package enginesim

import (
	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// words are the tokens of answers: tokens that are whole words, if the vocabulary has enough of them.
type words struct {
	ids   []uint32
	texts []string // of the ids, in the same order
}

// minWords is the least number of tokens of a kind that a vocabulary must have for answers of that kind.
const minWords = 32

// findWords returns whole words, or printable tokens, or any tokens with text: the first of these kinds of which
// the vocabulary has enough.
func findWords(v Vocabulary) *words {
	for _, fits := range []func([]byte) bool{isWord, isPrintable, func(text []byte) bool { return len(text) > 0 }} {
		// Decoding the whole vocabulary takes a few milliseconds, once per engine.
		w := &words{}
		var text []byte
		for id := range uint32(v.VocabSize()) {
			text = v.AppendDecode(text[:0], id)
			if fits(text) {
				w.ids = append(w.ids, id)
				w.texts = append(w.texts, string(text))
			}
		}
		if len(w.ids) >= minWords {
			return w
		}
	}
	// A vocabulary without text gets answers of its first token.
	return &words{ids: []uint32{0}, texts: []string{"?"}}
}

// isWord reports whether text is a space and two to twelve small letters.
func isWord(text []byte) bool {
	if len(text) < 3 || len(text) > 13 || text[0] != ' ' {
		return false
	}
	for _, c := range text[1:] {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}

// isPrintable reports whether text is printable ASCII.
func isPrintable(text []byte) bool {
	for _, c := range text {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return len(text) > 0
}

// answer is a pseudo-random answer. Its tokens depend on the seed and their position alone, so the core may
// preempt it, and the handler can compute its text without storing tokens.
type answer struct {
	words  *words
	seed   uint64
	length int // tokens; 0 if the request bounds the answer
	begin  *given
}

// given is the first token of an answer that another engine has begun.
type given struct {
	token uint32
	text  string
}

// newAnswer returns the i-th answer to a prompt. If the request does not bound it, its length is between half
// the mean and one and a half times the mean.
func (w *words) newAnswer(seed uint64, prompt []uint32, i, mean int, bounded bool) answer {
	a := answer{words: w, seed: mix(uint64(blockhash.Hash(prompt, seed)) + uint64(i))}
	// The length depends on the seed alone, so repeated requests have answers of the same length.
	if !bounded {
		a.length = max(1, mean/2) + int(mix(a.seed)%uint64(max(1, mean)))
	}
	return a
}

// word returns the index of the i-th word.
func (a answer) word(i int) int { return int(mix(a.seed+uint64(i)) % uint64(len(a.words.ids))) }

// next returns the i-th token, and whether it is the last one.
func (a answer) next(i int) (token uint32, stop bool) {
	if i == 0 && a.begin != nil {
		return a.begin.token, a.length == 1
	}
	return a.words.ids[a.word(i)], i+1 == a.length
}

// text returns the text of the i-th token.
func (a answer) text(i int) string {
	if i == 0 && a.begin != nil {
		return a.begin.text
	}
	return a.words.texts[a.word(i)]
}

// mix is the finalizer of splitmix64: a bijection whose output looks random.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seedOf returns the seed of a request: the engine's seed, combined with the request's own seed if it has one.
func seedOf(base uint64, own int64, has bool) uint64 {
	if !has {
		return base
	}
	return xxh3.HashSeed(bigEndian(uint64(own)), base)
}
