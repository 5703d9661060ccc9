package prompt_test

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// BenchmarkStage: what does a chat request cost from its body to its block hashes? turn=first
// is a conversation that nobody has seen; turn=next ends in a new message of 300 characters
// behind a conversation that is known. With the model of a real vocabulary:
//
//	STATOR_BENCH_MODEL=DIR go test -run - -bench Stage -count 6 ./internal/prompt | benchstat -col /memory -
func BenchmarkStage(b *testing.B) {
	for _, chars := range []int{4000, 32000} {
		for _, c := range []struct{ memory, turn string }{{"off", "first"}, {"on", "first"}, {"off", "next"}, {"on", "next"}} {
			b.Run(fmt.Sprintf("chars=%d/turn=%s/memory=%s", chars, c.turn, c.memory), func(b *testing.B) {
				m := load(b)
				if c.memory == "on" {
					m = m.WithMemory(prompt.NewMemory(prompt.MemoryConfig{MaxBytes: 64 << 20, Seed: 1}))
				}
				benchStage(b, m, chars, c.turn == "first")
			})
		}
	}
}

func benchStage(b *testing.B, m *prompt.Model, chars int, first bool) {
	const known = 32
	var bodies [known][]byte
	var s stage
	for i := range bodies {
		question := strings.ReplaceAll(prose(291, uint64(i)), "\n", " ")
		bodies[i] = numbered(withMessage(conversation(chars-300, uint64(1000*i)), question))
		s.do(b, m, bodies[i])
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(bodies[0])))
	before, n := cpu(b), 0
	for ; b.Loop(); n++ {
		body := bodies[n%known]
		number(body, n, first)
		s.do(b, m, body)
	}
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/1000/float64(n), "cpu-µs/op")
}

// cpu is the processor time of this process: on a machine that others use too, it is what
// tells one program from another.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// stage is what the router does with a body, and the buffers it uses again.
type stage struct {
	prompt prompt.Prompt
	blocks []blockhash.Block
}

func (s *stage) do(t testing.TB, m *prompt.Model, body []byte) {
	req, err := openai.Parse(prompt.Chat, body, openai.Limits{})
	if err == nil {
		err = m.Prepare(req, &s.prompt)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.blocks = s.prompt.AppendBlocks(s.blocks[:0], 16, blockhash.Seed("", ""))
}

const content = `"content":"`

// withMessage adds a message of the user.
func withMessage(body []byte, text string) []byte {
	at := bytes.LastIndex(body, []byte("]"))
	return fmt.Appendf(nil, `%s,{"role":"user","content":"%s"}%s`, body[:at], text, body[at:])
}

// numbered is body with a number before the text of each message.
func numbered(body []byte) []byte {
	return bytes.ReplaceAll(body, []byte(content), []byte(content+"00000000 "))
}

// number writes i over the number of the last message, or of every one, so that no segment was
// seen before.
func number(body []byte, i int, every bool) {
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
