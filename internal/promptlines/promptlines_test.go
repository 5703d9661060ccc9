package promptlines

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
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

// TestEachStopsWithItsContext ends the context while a template or a text is busy, and while Each waits for a line:
// Each returns soon, and the line that was cut short gets no answer.
func TestEachStopsWithItsContext(t *testing.T) {
	m, err := prompt.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	// The template takes some seconds until the bound on its steps ends it.
	busy, err := m.WithTemplate("{% for a in range(100000) %}{% for b in range(1000) %}{{ a }}{% endfor %}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return time.Unix(0, 0) }
	const chat = `{"messages": [{"role": "user", "content": "hi"}]}` + "\n"
	text := `{"text": "` + strings.Repeat("the end ", 1<<20) + `"}` + "\n"

	for _, c := range []struct {
		name, in string
		answer   func(done <-chan struct{}) func(dst, line []byte) ([]byte, error)
	}{
		{"a chat", chat, func(done <-chan struct{}) func(dst, line []byte) ([]byte, error) {
			return (&Renderer{Model: busy, Now: now, Done: done}).Answer
		}},
		{"a context", chat, func(done <-chan struct{}) func(dst, line []byte) ([]byte, error) {
			return (&Renderer{Model: busy, Raw: true, Now: now, Done: done}).Answer
		}},
		{"a text", text, func(done <-chan struct{}) func(dst, line []byte) ([]byte, error) {
			return (&Tokenizer{Model: m, Now: now, Done: done}).Answer
		}},
		{"no line", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pipe, writer := io.Pipe()
			defer func() { _ = writer.Close() }()
			in := &signalling{Reader: pipe, reads: make(chan struct{}, 100)}

			var stopped error
			var out strings.Builder
			ended := make(chan error, 1)
			go func() {
				ended <- Each(ctx, in, &out, func(dst, line []byte) ([]byte, error) {
					cancel()
					dst, stopped = c.answer(ctx.Done())(dst, line)
					return dst, stopped
				})
			}()

			<-in.reads
			if c.in == "" {
				cancel()
			} else if _, err := io.WriteString(writer, c.in); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				early := errors.Is(stopped, prompt.ErrStopped) || errors.Is(stopped, tokenizer.ErrStopped) || c.in == ""
				if err != nil || out.Len() > 0 || !early {
					t.Errorf("%v, the answer's error is %v, it wrote %.100q", err, stopped, &out)
				}
			case <-time.After(20 * time.Second):
				t.Error("it did not stop")
			}
		})
	}
}

// signalling is a reader that signals each Read before it begins.
type signalling struct {
	io.Reader
	reads chan struct{}
}

func (s *signalling) Read(p []byte) (int, error) {
	select {
	case s.reads <- struct{}{}:
	default:
	}
	return s.Reader.Read(p)
}

// zeros is an endless reader of the digit 0.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
