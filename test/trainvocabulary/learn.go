package main

import (
	"cmp"
	"slices"
)

// vocabulary has the learned tokens by id, and the pairs of ids in the order of joining.
type vocabulary struct {
	tokens []string
	merges [][2]int
}

// word is a piece of text with its count, as symbols.
type word struct {
	symbols []int
	count   int
}

// learn joins the most frequent pair of symbols until there are size tokens. Ties go to the
// smaller ids, so that every run learns the same. Counting anew after each join is slow and
// plain; the text is small.
func learn(counts map[string]int, size int) *vocabulary {
	v := &vocabulary{}
	for b := range 256 {
		v.tokens = append(v.tokens, string([]byte{byte(b)}))
	}

	words := make([]word, 0, len(counts))
	for text, n := range counts {
		w := word{count: n}
		for i := range len(text) {
			w.symbols = append(w.symbols, int(text[i]))
		}
		words = append(words, w)
	}

	seen := map[string]bool{}
	pairs := map[[2]int]int{}
	where := map[[2]int]map[int]bool{} // the words that may hold a pair
	for i := range words {
		words[i].note(pairs, where, i, 1)
	}

	for len(v.tokens) < size {
		best := mostFrequent(pairs)
		if pairs[best] < 2 {
			break
		}
		token := v.tokens[best[0]] + v.tokens[best[1]]
		if seen[token] { // two ways to one text would be two ids for it
			delete(pairs, best)
			continue
		}
		seen[token] = true
		id := len(v.tokens)
		v.tokens, v.merges = append(v.tokens, token), append(v.merges, best)
		for i := range where[best] {
			words[i].note(pairs, where, i, -1)
			words[i].join(best, id)
			words[i].note(pairs, where, i, 1)
		}
		delete(pairs, best)
		delete(where, best)
	}

	return v
}

func mostFrequent(pairs map[[2]int]int) (best [2]int) {
	for p, n := range pairs {
		if c := cmp.Compare(n, pairs[best]); c > 0 || c == 0 && slices.Compare(p[:], best[:]) < 0 {
			best = p
		}
	}
	return best
}

// note adds sign times the word's pairs to the counts.
func (w *word) note(pairs map[[2]int]int, where map[[2]int]map[int]bool, i, sign int) {
	for k := 0; k+1 < len(w.symbols); k++ {
		p := [2]int{w.symbols[k], w.symbols[k+1]}
		pairs[p] += sign * w.count
		if pairs[p] == 0 {
			delete(pairs, p)
		}
		if sign > 0 {
			if where[p] == nil {
				where[p] = map[int]bool{}
			}
			where[p][i] = true
		}
	}
}

// join replaces each pair by id, from left to right.
func (w *word) join(pair [2]int, id int) {
	out := w.symbols[:0]
	for k := 0; k < len(w.symbols); k++ {
		if k+1 < len(w.symbols) && w.symbols[k] == pair[0] && w.symbols[k+1] == pair[1] {
			out = append(out, id)
			k++
			continue
		}
		out = append(out, w.symbols[k])
	}

	w.symbols = out
}
