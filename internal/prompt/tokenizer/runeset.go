package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// runs is a set of characters as sorted ranges, each [first, last], that neither overlap nor touch.
type runs [][2]rune

const (
	surrogateMin = 0xd800
	surrogateMax = 0xdfff
)

// everything returns the set of all characters.
func everything() runs { return runs{{0, surrogateMin - 1}, {surrogateMax + 1, utf8.MaxRune}} }

// merged returns s sorted, with ranges joined that overlap or touch. It changes s.
func (s runs) merged() runs {
	slices.SortFunc(s, func(a, b [2]rune) int { return int(a[0] - b[0]) })
	out := s[:0]
	for _, r := range s {
		if n := len(out); n > 0 && r[0] <= out[n-1][1]+1 {
			out[n-1][1] = max(out[n-1][1], r[1])
			continue
		}
		out = append(out, r)
	}
	return out
}

func (s runs) or(t runs) runs { return slices.Concat(s, t).merged() }

func (s runs) and(t runs) runs { return s.not().or(t.not()).not() }

// not returns the characters that are not in s.
func (s runs) not() runs {
	var out runs
	for _, all := range everything() {
		from := all[0]
		for _, r := range s {
			if r[1] < from || r[0] > all[1] {
				continue
			}
			if r[0] > from {
				out = append(out, [2]rune{from, r[0] - 1})
			}
			from = r[1] + 1
		}
		if from <= all[1] {
			out = append(out, [2]rune{from, all[1]})
		}
	}

	return out
}

// categoryRunsOf returns the characters of a category ("Lu") or of a group of categories ("L").
func categoryRunsOf(name string) runs {
	var out runs
	for _, run := range categoryRuns {
		if run.category != catLuLl && run.category != catLlLu {
			if run.name()[:len(name)] == name {
				out = append(out, [2]rune{run.lo, run.hi})
			}
			continue
		}
		for r := run.lo; r <= run.hi; r++ {
			if run.categoryAt(r).name()[:len(name)] == name {
				out = append(out, [2]rune{r, r})
			}
		}
	}

	return out.merged()
}

// xor returns the characters that are in either s or t, but not in both.
func (s runs) xor(t runs) runs { return s.or(t).and(s.and(t).not()) }

// charset is a set of characters with a bit for each, in pages of 256. Empty pages and full pages are shared.
type charset struct {
	ascii [2]uint64
	pages [utf8.MaxRune>>8 + 1]*[4]uint64
}

var emptyPage, fullPage = new([4]uint64), &[4]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}

// newCharset returns a charset with the characters of s.
func newCharset(s runs) *charset {
	c := &charset{}
	for i := range c.pages {
		c.pages[i] = emptyPage
	}

	for _, r := range s {
		for lo := r[0]; lo <= r[1]; {
			page := lo >> 8
			hi := min(r[1], page<<8|0xff)
			if lo&0xff == 0 && hi&0xff == 0xff {
				c.pages[page] = fullPage
			} else {
				if c.pages[page] == emptyPage {
					c.pages[page] = new([4]uint64)
				}
				for k := lo; k <= hi; k++ {
					c.pages[page][k>>6&3] |= 1 << (k & 63)
				}
			}
			lo = hi + 1
		}
	}

	c.ascii = [2]uint64(c.pages[0][:2])
	return c
}

func (c *charset) has(r rune) bool { return c.pages[r>>8][r>>6&3]&(1<<(r&63)) != 0 }

// lengthAt returns the length in bytes of the character at s[i] if it is in c, else 0.
func (c *charset) lengthAt(s string, i int) int {
	if i >= len(s) {
		return 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return int(c.ascii[b>>6] >> (b & 63) & 1)
	}

	r, n := utf8.DecodeRuneInString(s[i:])
	if !c.has(r) {
		return 0
	}
	return n
}
