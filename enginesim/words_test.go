package enginesim

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// TestWordsOfTheSimulatedModel checks that answers in the vocabulary of the simulated model are words that a
// person can read, and that each word is its token.
func TestWordsOfTheSimulatedModel(t *testing.T) {
	raw, err := fs.ReadFile(models.Sim(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := tokenizer.Load(raw)
	if err != nil {
		t.Fatal(err)
	}
	w := findWords(v)
	if len(w.ids) < 500 {
		t.Errorf("only %d words", len(w.ids))
	}
	begun := w.newAnswer(1, []uint32{1, 2, 3}, 0, 64, true)
	a, shown := reader{answer: &begun}, reader{answer: &begun}
	var text strings.Builder
	var ids []uint32
	for i := range 200 {
		id, stop := a.next(i)
		if stop {
			t.Fatal("an answer that the request bounds ends by itself")
		}
		ids = append(ids, id)
		_, word := shown.read(i)
		text.WriteString(word)
	}
	if got := string(v.AppendDecode(nil, ids...)); got != text.String() {
		t.Errorf("the tokens read %q, the text is %q", got, text.String())
	}
	t.Logf("an answer: %.100s", text.String())
}

// TestAnswersDependOnSeedPromptAndChoice compares answers that differ in one of these, and checks their lengths.
func TestAnswersDependOnSeedPromptAndChoice(t *testing.T) {
	w := hundredWords()
	prompt := []uint32{5, 6, 7}
	a := w.newAnswer(1, prompt, 0, 64, false)
	for name, other := range map[string]answer{
		"another seed":   w.newAnswer(2, prompt, 0, 64, false),
		"another prompt": w.newAnswer(1, []uint32{5, 6, 8}, 0, 64, false),
		"another choice": w.newAnswer(1, prompt, 1, 64, false),
	} {
		same := 0
		one, two := reader{answer: &a}, reader{answer: &other}
		for i := range 100 {
			id, _ := one.read(i)
			if again, _ := two.read(i); again == id {
				same++
			}
		}
		if same > 20 {
			t.Errorf("%s gives %d of 100 words again", name, same)
		}
	}
	lengths := map[int]bool{}
	for i := range uint32(1000) {
		n := w.newAnswer(1, []uint32{i}, 0, 64, false).length
		if n < 32 || n >= 96 {
			t.Fatalf("an answer of %d words, where the mean is 64", n)
		}
		lengths[n] = true
	}
	if len(lengths) < 60 {
		t.Errorf("only %d lengths", len(lengths))
	}
}

// hundredWords are words whose ids begin at 1000, so that prompts in tests do not end with them.
func hundredWords() *words {
	w := &words{ids: make([]uint32, 100), texts: make([]string, 100)}
	for i := range w.ids {
		w.ids[i] = uint32(1000 + i)
	}
	return w
}

// TestAnswersGoOn cuts an answer at every place. The rest follows from the prompt and the tokens before the cut, and ends at the same
// place, whether the request bounds it or not.
func TestAnswersGoOn(t *testing.T) {
	w := hundredWords()
	prompt := []uint32{5, 6, 7}
	for _, bounded := range []bool{false, true} {
		whole := w.newAnswer(1, prompt, 0, 64, bounded)
		r := reader{answer: &whole}
		length := max(whole.length, 40)
		tokens := prompt
		for i := range length {
			rest := w.newAnswer(1, tokens, 0, 64, bounded)
			if !bounded && rest.length != length-i {
				t.Fatalf("after %d tokens %d follow, of %d", i, rest.length, length)
			}
			other := reader{answer: &rest}
			for j := i; j < length; j++ {
				want, _ := r.read(j)
				if got, _ := other.next(j - i); got != want {
					t.Fatalf("bounded %t: token %d after a cut at %d is %d, want %d", bounded, j, i, got, want)
				}
			}
			id, _ := r.read(i)
			tokens = append(tokens[:len(tokens):len(tokens)], id)
		}
	}
}
