package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// referenceCase is one vocabulary of testdata/reference.jsonl, with the results of Hugging Face tokenizers for
// texts. The script test/oracle/golden.py writes the file.
type referenceCase struct {
	Name  string
	Model json.RawMessage
	Texts []struct {
		Text string
		IDs  []uint32
	}
}

// referenceCases reads testdata/reference.jsonl.
func referenceCases(t testing.TB) (cases []referenceCase) {
	t.Helper()
	f, err := os.Open("testdata/reference.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	for lines.Buffer(nil, 4<<20); lines.Scan(); {
		var c referenceCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if lines.Err() != nil || len(cases) == 0 {
		t.Fatalf("%d cases and error %v", len(cases), lines.Err())
	}
	return cases
}

// TestRecordedReference compares ids with recorded results of Hugging Face, for vocabularies with all
// kinds of settings.
func TestRecordedReference(t *testing.T) {
	for _, c := range referenceCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			tok, err := Load(c.Model)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range c.Texts {
				if got := tok.Encode(nil, row.Text); !slices.Equal(got, row.IDs) {
					t.Errorf("%+q: %d, want %d", row.Text, got, row.IDs)
				}
			}
		})
	}
}

// TestNoAllocations checks for each kind of vocabulary that encoding does not allocate once the buffers are
// large enough.
func TestNoAllocations(t *testing.T) {
	text := strings.Repeat("The quick brown fox: 12345 x² naïve 你好\n\n", 50)
	for _, c := range referenceCases(t) {
		tok, err := Load(c.Model)
		if err != nil {
			t.Fatal(err)
		}
		dst := tok.Encode(nil, text)
		if n := testing.AllocsPerRun(20, func() { dst = tok.Encode(dst[:0], text) }); n != 0 {
			t.Errorf("%s: %v allocations per Encode, want 0", c.Name, n)
		}
	}
}
