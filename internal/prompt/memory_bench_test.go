package prompt_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/test/process"
)

// BenchmarkStage measures all work on a chat request from its body to its block hashes. With turn=first the
// whole conversation is new to the memory. With turn=next only its last message of 300 characters is new. To
// measure with a real vocabulary:
//
//	STATOR_BENCH_MODEL=DIR go test -run - -bench Stage -count 6 ./internal/prompt | benchstat -col /memory -
func BenchmarkStage(b *testing.B) {
	for _, chars := range []int{4000, 32000} {
		for _, c := range []struct{ memory, turn string }{{"off", "first"}, {"on", "first"}, {"off", "next"}, {"on", "next"}} {
			b.Run(fmt.Sprintf("chars=%d/turn=%s/memory=%s", chars, c.turn, c.memory), func(b *testing.B) {
				m := loadModel(b)
				if c.memory == "on" {
					m = m.WithMemory(prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 64 << 20, Seed: 1}))
				}
				benchStage(b, m, chars, c.turn == "first")
			})
		}
	}
}

// benchStage runs BenchmarkStage for 32 conversations in turn. First makes every message new in each
// iteration, else only the last one.
func benchStage(b *testing.B, m *prompt.Model, chars int, first bool) {
	const conversations = 32
	var bodies [conversations][]byte
	var s stage
	for i := range bodies {
		question := strings.ReplaceAll(prose(291, uint64(i)), "\n", " ")
		bodies[i] = numbered(withMessage(conversation(chars-300, uint64(1000*i)), question))
		s.prepare(b, m, bodies[i])
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(bodies[0])))
	before, n := process.OwnCPU(), 0
	for ; b.Loop(); n++ {
		body := bodies[n%conversations]
		renumber(body, n, first)
		s.prepare(b, m, body)
	}
	b.ReportMetric(float64((process.OwnCPU()-before).Nanoseconds())/1000/float64(n), "cpu-µs/op")
}

// stage prepares requests as the router does, with the buffers that it uses again for each request.
type stage struct {
	request prompt.Request
	prompt  prompt.Prompt
	blocks  []blockhash.Block
}

// prepare parses, renders and tokenizes body and computes its block hashes.
func (s *stage) prepare(t testing.TB, m *prompt.Model, body []byte) {
	err := openai.ParseInto(&s.request, prompt.Chat, body, openai.Limits{})
	if err == nil {
		err = m.Prepare(&s.request, &s.prompt)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.blocks = s.prompt.AppendBlocks(s.blocks[:0], 16, blockhash.Seed("", ""))
}

const content = `"content":"`

// withMessage returns body with one more user message.
func withMessage(body []byte, text string) []byte {
	at := bytes.LastIndex(body, []byte("]"))
	return fmt.Appendf(nil, `%s,{"role":"user","content":"%s"}%s`, body[:at], text, body[at:])
}

// numbered returns body with a number of eight digits before the text of each message.
func numbered(body []byte) []byte {
	return bytes.ReplaceAll(body, []byte(content), []byte(content+"00000000 "))
}

// renumber overwrites the number of the last message with i, or of all messages where every is set. The
// changed segments are then new to the memory.
func renumber(body []byte, i int, every bool) {
	var digits [8]byte
	for k := range digits {
		digits[7-k] = '0' + byte(i%10)
		i /= 10
	}
	for at := len(body); ; {
		if at = bytes.LastIndex(body[:at], []byte(content)); at < 0 {
			return
		}
		copy(body[at+len(content):], digits[:])
		if !every {
			return
		}
	}
}
