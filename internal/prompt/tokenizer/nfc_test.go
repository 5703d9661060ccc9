package tokenizer

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"
	"unicode/utf8"
)

// TestNFCTables compares the tables with those of Hugging Face tokenizers 0.23.3, which was asked about every code point. Their numbers of
// entries and their hash are kept here. A release of x/text that knows more characters fails this test: add those characters to [newer].
func TestNFCTables(t *testing.T) {
	const wantSizes, wantHash = "810 classes, 2060 decompositions, 940 compositions", 0xc2665bc60afe8f9e
	tables := nfc()
	sizes := fmt.Sprintf("%d classes, %d decompositions, %d compositions", len(tables.combining), len(tables.decompose), len(tables.compose))
	if sizes != wantSizes {
		t.Errorf("the tables have %s, not %s", sizes, wantSizes)
	}

	h := fnv.New64a()
	for r := range rune(utf8.MaxRune + 1) {
		class, decomposed := tables.combining[r], tables.decompose[r]
		isUnsafe := tables.unsafe[r>>6]&(1<<(r&63)) != 0
		if class != 0 || decomposed != "" || isUnsafe {
			fmt.Fprintf(h, "%x %d %q %t\n", r, class, decomposed, isUnsafe)
		}
	}
	pairs := slices.SortedFunc(maps.Keys(tables.compose), func(a, b [2]rune) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	for _, pair := range pairs {
		fmt.Fprintf(h, "%x %x\n", pair, tables.compose[pair])
	}
	if got := h.Sum64(); got != wantHash {
		t.Errorf("the hash of the tables is %#x, not %#x", got, uint64(wantHash))
	}
}
