package prompt_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/test/race"
)

// TestIdlePromptsPinNoBody prepares chats with a long message or a long variable, and resets the prompt. Its
// buffers then do not refer to the bodies.
func TestIdlePromptsPinNoBody(t *testing.T) {
	race.Skip(t)
	const size = 8 << 20
	m, err := sim(t).WithTemplate(`{% for m in messages %}{{ m.role }}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}

	heap := func() int {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return int(s.HeapAlloc)
	}
	prompts := make([]prompt.Prompt, 4)
	before := heap()
	for i := range prompts {
		message := `{"role":"user","content":"` + strings.Repeat("A", size) + `"}`
		if err := m.Prepare(parse(t, prompt.Chat, `{"model":"m","messages":[`+message+`,{"role":"user","content":"x"}]}`), &prompts[i]); err != nil {
			t.Fatal(err)
		}
		named := parse(t, prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1,"b":2,"`+
			strings.Repeat("A", size)+`":"`+strings.Repeat("A", size)+`"}}`)
		if err := m.Prepare(named, &prompts[i]); err != nil {
			t.Fatal(err)
		}
		few := parse(t, prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"x"}]}`)
		if err := m.Prepare(few, &prompts[i]); err != nil {
			t.Fatal(err)
		}
		long := parse(t, prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"content"},`+message+`],
			"add_generation_prompt":false,"continue_final_message":true}`)
		if err := m.Prepare(long, &prompts[i]); err == nil {
			t.Error("a template without the text of messages continues one")
		}
		prompts[i].Reset()
	}

	if kept := heap() - before; kept > size/2 {
		t.Errorf("%d idle prompts keep %d KiB", len(prompts), kept>>10)
	}
	for i := range prompts {
		if n := prompts[i].Size(); n > 1<<20 {
			t.Errorf("the buffers of prompt %d have %d bytes", i, n)
		}
	}
	runtime.KeepAlive(prompts)
}

// TestPromptSize compares Size with what a large prompt allocates for its buffers.
func TestPromptSize(t *testing.T) {
	var p prompt.Prompt
	if n := p.Size(); n != 0 {
		t.Errorf("a new prompt has %d bytes", n)
	}
	text := strings.Repeat("the end ", 10_000)
	if err := sim(t).Prepare(parse(t, prompt.Chat, `{"model":"m","messages":[{"role":"user","content":"`+text+`"}]}`), &p); err != nil {
		t.Fatal(err)
	}
	if n, least := p.Size(), len(text)+4*20_000; n < least || n > 4*least {
		t.Errorf("%d bytes, want between %d and %d", n, least, 4*least)
	}
}
