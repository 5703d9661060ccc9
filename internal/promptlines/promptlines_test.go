package promptlines

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
)

// TestEachAnswersEveryLine answers lines of each command in order, with errors in place.
func TestEachAnswersEveryLine(t *testing.T) {
	m, err := prompt.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return time.Unix(0, 0) }

	for _, c := range []struct {
		answer func(dst, line []byte) ([]byte, error)
		in     string
		want   []string // parts of each line
	}{
		{
			(&Tokenizer{Model: m, Now: now}).Answer,
			`{"text": "hello"}` + "\n" + `{"prompt": ["a", "b"]}` + "\n" + `{"messages": [{"role": "user", "content": "hi"}]}` + "\n{}\nnonsense\n" + `{"text": "last"}`,
			[]string{`{"ids":[`, `{"ids":[[`, `{"ids":[`, "neither text, messages", "must be a JSON object", `{"ids":[`},
		},
		{
			(&Renderer{Model: m, Now: now}).Answer,
			`{"messages": [{"role": "user", "content": "hi"}]}` + "\n" + `{"prompt": "x"}`,
			[]string{`{"prompt":"`, "Only chats are rendered"},
		},
		{
			(&Renderer{Model: m, Raw: true, Now: now}).Answer,
			`{"messages": [{"role": "user", "content": "hi"}]}`,
			[]string{`{"prompt":"`},
		},
		{
			(&Hasher{BlockSize: 2}).Answer,
			`{"tokens": [1, 2, 3]}` + "\n{}\n[]",
			[]string{`"sequence_hashes":[`, "The line has no tokens", "The line must be"},
		},
	} {
		var out strings.Builder
		if err := Each(t.Context(), strings.NewReader(c.in), &out, c.answer); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != len(c.want) {
			t.Fatalf("%d answers to %q:\n%s", len(lines), c.in, &out)
		}
		for i, want := range c.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("line %d: %s\nhas no %q", i+1, lines[i], want)
			}
		}
	}
}

// TestEachRefusesLongLines answers a line beyond the bound with an error, and the next line as usual.
func TestEachRefusesLongLines(t *testing.T) {
	in := io.MultiReader(io.LimitReader(zeros{}, maxLine+1), strings.NewReader("\n{}\n"))
	var out strings.Builder
	err := Each(t.Context(), in, &out, func(dst, line []byte) ([]byte, error) { return append(dst, "ok"...), nil })
	if lines := strings.Split(out.String(), "\n"); err != nil || !strings.Contains(lines[0], "line_too_long") || lines[1] != "ok" {
		t.Errorf("%v: %.200s", err, out.String())
	}
}

// zeros is an endless reader of the digit 0.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
