package enginesim

import (
	"github.com/zeebo/xxh3"
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

// answer is a pseudo-random answer. Each token follows from the tokens before it, those of the prompt included. So an engine that gets
// the beginning of an answer as the end of a prompt computes the same rest.
type answer struct {
	words  *words
	start  uint64 // the state after the prompt
	length int    // tokens; 0 if the request bounds the answer
	begin  *given
}

// given is the first token of an answer that another engine has begun.
type given struct {
	token uint32
	text  string
}

// newAnswer returns the i-th answer to a prompt. If the request does not bound it, its length is between half
// the mean and one and a half times the mean. An answer that continues another one ends where that one would have ended.
func (w *words) newAnswer(seed uint64, prompt []uint32, i, mean int, bounded bool) answer {
	state := mix(seed + uint64(i))
	begun := 0 // tokens at the end of the prompt that an engine could have computed
	from := state
	for _, token := range prompt {
		if begun == 0 {
			from = state
		}
		if !bounded && w.ids[w.word(state)] == token {
			begun++
		} else {
			begun = 0
		}
		state = extend(state, token)
	}

	a := answer{words: w, start: state}
	if bounded {
		return a
	}
	// The length depends on the state alone, so repeated requests have answers of the same length. A prompt may end as an answer by
	// chance, or have a whole answer at its end: then its own answer begins after it.
	a.length = lengthOf(from, mean) - begun
	if begun == 0 || a.length <= 0 {
		a.length = lengthOf(state, mean)
	}
	return a
}

// lengthOf returns the length of an answer whose prompt has left that state.
func lengthOf(state uint64, mean int) int {
	return max(1, mean/2) + int(mix(state)%uint64(max(1, mean)))
}

// extend returns the state after one more token.
func extend(state uint64, token uint32) uint64 { return mix(state ^ uint64(token)) }

// word returns the index of the word that follows in a state.
func (w *words) word(state uint64) int { return int(state % uint64(len(w.ids))) }

// reader reads the tokens of an answer in order. It belongs to one goroutine.
type reader struct {
	*answer
	at    int // tokens that were read
	state uint64
	token uint32 // the last one that was read
	text  string
}

// read reads the i-th token and its text. The next one takes one step, and an earlier one begins again at the prompt.
func (r *reader) read(i int) (token uint32, text string) {
	if i < r.at-1 || r.at == 0 {
		r.at, r.state = 0, r.start
	}
	for ; r.at <= i; r.at++ {
		w := r.words.word(r.state)
		r.token, r.text = r.words.ids[w], r.words.texts[w]
		if r.at == 0 && r.begin != nil {
			r.token, r.text = r.begin.token, r.begin.text
		}
		r.state = extend(r.state, r.token)
	}
	return r.token, r.text
}

// next returns the i-th token, and whether it is the last one.
func (r *reader) next(i int) (token uint32, stop bool) {
	token, _ = r.read(i)
	return token, i+1 == r.length
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
