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
	a := w.newAnswer(1, []uint32{1, 2, 3}, 0, 64, true)
	var text strings.Builder
	var ids []uint32
	for i := range 200 {
		id, stop := a.next(i)
		if stop {
			t.Fatal("an answer that the request bounds ends by itself")
		}
		ids = append(ids, id)
		text.WriteString(a.text(i))
	}
	if got := string(v.AppendDecode(nil, ids...)); got != text.String() {
		t.Errorf("the tokens read %q, the text is %q", got, text.String())
	}
	t.Logf("an answer: %.100s", text.String())
}

// TestAnswersDependOnSeedPromptAndChoice compares answers that differ in one of these, and checks their lengths.
func TestAnswersDependOnSeedPromptAndChoice(t *testing.T) {
	w := &words{ids: make([]uint32, 100), texts: make([]string, 100)}
	prompt := []uint32{5, 6, 7}
	a := w.newAnswer(1, prompt, 0, 64, false)
	for name, other := range map[string]answer{
		"another seed":   w.newAnswer(2, prompt, 0, 64, false),
		"another prompt": w.newAnswer(1, []uint32{5, 6, 8}, 0, 64, false),
		"another choice": w.newAnswer(1, prompt, 1, 64, false),
	} {
		same := 0
		for i := range 100 {
			if a.word(i) == other.word(i) {
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
