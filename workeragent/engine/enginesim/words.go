package enginesim

import (
	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// words are the tokens that answers are made of: those that read as a word of their own,
// where the vocabulary has enough of them.
type words struct {
	ids   []uint32
	texts []string
}

// minWords is how many words a vocabulary must have for answers to be made of words.
const minWords = 32

func findWords(v Vocabulary) *words {
	for _, fits := range []func([]byte) bool{isWord, isPrintable, func(text []byte) bool { return len(text) > 0 }} {
		w := &words{}
		var text []byte
		for id := range uint32(v.VocabSize()) {
			text = v.AppendDecode(text[:0], id)
			if fits(text) {
				w.ids, w.texts = append(w.ids, id), append(w.texts, string(text))
			}
		}
		if len(w.ids) >= minWords {
			return w
		}
	}
	return &words{ids: []uint32{0}, texts: []string{"?"}}
}

// isWord says whether text is a space and two to twelve small letters.
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

func isPrintable(text []byte) bool {
	for _, c := range text {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return len(text) > 0
}

// answer chooses one answer: the same for the same seed.
type answer struct {
	words  *words
	seed   uint64
	length int // 0 where the request bounds it
}

// newAnswer seeds the i-th answer to a prompt. Its own length, where the request does not
// bound it, lies between half the mean and one and a half.
func (w *words) newAnswer(seed uint64, prompt []uint32, i, mean int, bounded bool) answer {
	a := answer{words: w, seed: mix(uint64(blockhash.Hash(prompt, seed)) + uint64(i))}
	if !bounded {
		a.length = max(1, mean/2) + int(mix(a.seed)%uint64(max(1, mean)))
	}
	return a
}

func (a answer) word(i int) int { return int(mix(a.seed+uint64(i)) % uint64(len(a.words.ids))) }

func (a answer) next(i int) (token uint32, stop bool) {
	return a.words.ids[a.word(i)], i+1 == a.length
}

func (a answer) text(i int) string { return a.words.texts[a.word(i)] }

// mix is the finaliser of splitmix64: a bijection that leaves no pattern.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seedOf makes a number of a request's own seed.
func seedOf(base uint64, own int64, has bool) uint64 {
	if !has {
		return base
	}
	return xxh3.HashSeed(bigEndian(uint64(own)), base)
}
