package tokenizer

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stator-project/stator/test/race"
)

// giantTexts are texts without a place to cut them, of n bytes each.
func giantTexts(n int) map[string]string {
	texts := map[string]string{}
	for _, s := range []string{" ", "a", "=", "\n", "ab", "etaoinshrdlu"} {
		texts[s] = strings.Repeat(s, n/len(s))
	}
	return texts
}

// memoryOf returns the bytes that run allocates, and by how much the heap in use grows after it.
func memoryOf(run func()) (allocated, kept int) {
	var before, between, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&between)
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int(between.TotalAlloc - before.TotalAlloc), int(after.HeapAlloc) - int(before.HeapAlloc)
}

// TestGiantPiecesNeedLittleMemory bounds the memory of a text that is one piece, and the memory
// that the encoders keep after it.
func TestGiantPiecesNeedLittleMemory(t *testing.T) {
	race.Skip(t)
	const size = 1 << 19
	tok := sim(t)
	for name, text := range giantTexts(size) {
		dst := make([]uint32, 0, size)
		allocated, kept := memoryOf(func() { dst = tok.Encode(dst, text) })

		if most := 14*size + 2<<20; allocated > most {
			t.Errorf("%q: %.1f bytes are allocated for each byte, %d in all", name, float64(allocated)/size, allocated)
		}
		t.Logf("%q: %.1f bytes are allocated for each byte, %d KiB stay in use", name, float64(allocated)/size, kept>>10)
		if kept > 4<<20 {
			t.Errorf("%q: %d bytes stay in use", name, kept)
		}
		runtime.KeepAlive(dst)
	}
	runtime.KeepAlive(tok)
}

// TestIdleEncodersKeepLittle encodes giant texts on several goroutines. All encoders together then keep a few MiB
// for each processor.
func TestIdleEncodersKeepLittle(t *testing.T) {
	tok := sim(t)
	texts := giantTexts(150 << 10)
	_, kept := memoryOf(func() {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for _, text := range texts {
					tok.Encode(nil, text)
				}
			})
		}
		all.Wait()
	})

	if most := runtime.GOMAXPROCS(0) * (4 << 20); kept > most {
		t.Errorf("%d bytes stay in use, more than %d", kept, most)
	}
	runtime.KeepAlive(tok)
}

// TestEncodingEndsAtItsBounds encodes a long text with each bound.
func TestEncodingEndsAtItsBounds(t *testing.T) {
	tok := sim(t)
	text := strings.Repeat("the end ", 1<<17)
	whole := tok.Encode(nil, text)

	ids, err := tok.EncodeWithin([]uint32{7}, text, Bounds{Tokens: 1000})
	if !errors.Is(err, ErrTooLong) || len(ids) <= 1001 || len(ids) > 1001+2*checkBytes || ids[0] != 7 {
		t.Errorf("%d ids of at most 1000, error %v", len(ids), err)
	}
	ids, err = tok.EncodeWithin(nil, text, Bounds{Tokens: len(whole)})
	if err != nil || len(ids) != len(whole) {
		t.Errorf("%d ids of %d, error %v", len(ids), len(whole), err)
	}
	if _, err = tok.EncodeWithin(nil, "the end", Bounds{Tokens: 1}); !errors.Is(err, ErrTooLong) {
		t.Errorf("a short text: error %v", err)
	}

	done := make(chan struct{})
	close(done)
	for name, s := range map[string]string{"words": text, "one piece": strings.Repeat(" ", 1<<20)} {
		ids, err = tok.EncodeWithin(nil, s, Bounds{Tokens: len(s), Done: done})
		if !errors.Is(err, ErrStopped) || len(ids) > checkBytes {
			t.Errorf("%s: %d ids after the end, error %v", name, len(ids), err)
		}
	}
	if again := tok.Encode(nil, text); len(again) != len(whole) {
		t.Errorf("%d ids after that, want %d", len(again), len(whole))
	}
}

// TestFewestTokens compares the lower bound with the number of ids, for each vocabulary of the references.
func TestFewestTokens(t *testing.T) {
	models := map[string]*Tokenizer{"sim": sim(t)}
	for _, c := range referenceCases(t) {
		if tok, err := Load([]byte(c.Model)); err == nil {
			models[c.Name] = tok
		}
	}

	bounded := 0
	for name, tok := range models {
		for _, s := range []string{"a", " ", "=", "the ", "\u212a", "한", "한", "e\u0301", "ᾂ", "\U0001f600", "<a>  ", "<unk>", "word "} {
			text := strings.Repeat(s, 256)
			n := len(tok.Encode(nil, text))
			if fewest := tok.FewestTokens(text); fewest > n {
				t.Errorf("%s: %.8q has %d tokens, and a lower bound of %d", name, text, n, fewest)
			} else if fewest > 0 {
				bounded++
			}
		}
	}
	if bounded == 0 {
		t.Error("no vocabulary has a bound")
	}
}

// TestNFCShrinksAtMostFourfold compares each character, and its decomposition, with its normal form.
func TestNFCShrinksAtMostFourfold(t *testing.T) {
	var n normalizer
	longestFor := map[string]int{} // the longest character that decomposes to the key alone
	for from, to := range nfc().decompose {
		longestFor[to] = max(longestFor[to], utf8.RuneLen(from))
	}

	for r, decomposed := range nfc().decompose {
		normal := len(n.normalize(string(r)))
		if utf8.RuneLen(r) > nfcShrink*normal || len(decomposed) > nfcShrink*len(n.normalize(decomposed)) {
			t.Errorf("%U of %d bytes, decomposed to %d, has a normal form of %d", r, utf8.RuneLen(r), len(decomposed), normal)
		}
		// Each character of a decomposition may itself be written as a longer one.
		longest := 0
		for _, part := range decomposed {
			longest += max(utf8.RuneLen(part), longestFor[string(part)])
		}
		if composed := len(n.normalize(decomposed)); longest > nfcShrink*composed {
			t.Errorf("%U: up to %d bytes have a normal form of %d", r, longest, composed)
		}
	}
}
