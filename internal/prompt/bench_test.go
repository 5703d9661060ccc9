package prompt_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// words are common English words and programming terms, so that most vocabularies have a token for each.
var words = strings.Fields(`the of and to in is it you that for on are with as be this have or from by not but what all were when we there can
	file error code function value test return class line method string name type data import object model list number output command path request
	response message version please check the current directory and find where this function is defined then change it so that the test passes`)

// prose returns text of n characters, different for each seed.
func prose(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
		switch r.IntN(12) {
		case 0:
			b.WriteString(".\n")
		case 1:
			b.WriteString(", ")
		case 2:
			fmt.Fprintf(&b, "_%d = %d\n    ", r.IntN(99), r.IntN(9999))
		default:
			b.WriteByte(' ')
		}
	}
	return b.String()[:n]
}

// conversation returns the body of a chat request with n characters of text, in messages of up to 2,000.
func conversation(n int, seed uint64) []byte {
	messages := []map[string]string{{"role": "system", "content": "You are a helpful assistant."}}
	for i := 0; n > 0; i++ {
		size := min(n, 2000)
		n -= size
		messages = append(messages, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": prose(size, seed+uint64(i))})
	}
	body, _ := json.Marshal(map[string]any{"model": "sim", "messages": messages, "stream": true, "max_tokens": 100})
	return body
}

// loadModel loads the model in the folder $STATOR_BENCH_MODEL, or the simulator's where that is not set.
func loadModel(b *testing.B) *prompt.Model {
	b.Helper()
	if dir := os.Getenv("STATOR_BENCH_MODEL"); dir != "" {
		m, err := prompt.Load(os.DirFS(dir))
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	return sim(b)
}

// BenchmarkPrepare measures each step of preparing a chat request. It alternates between 64 requests that
// share no text.
//
//	go test -run - -bench Prepare -count 6 ./internal/prompt | benchstat -col /step -
func BenchmarkPrepare(b *testing.B) {
	m := loadModel(b)
	for _, chars := range []int{1000, 4000, 32000} {
		var bodies [64][]byte
		var requests [64]*prompt.Request
		var texts [64]string
		var p prompt.Prompt
		for i := range bodies {
			bodies[i] = conversation(chars, uint64(1000*i))
			requests[i] = parse(b, prompt.Chat, string(bodies[i]))
			if err := m.Prepare(requests[i], &p); err != nil {
				b.Fatal(err)
			}
			texts[i] = string(p.Text)
		}
		steps := []struct {
			name string
			run  func(i int) error
		}{
			{"parse", func(i int) error {
				_, err := openai.Parse(prompt.Chat, bodies[i%64], openai.Limits{})
				return err
			}},
			{"tokenize", func(i int) error {
				p.Tokens = m.Tokenizer().Encode(p.Tokens[:0], texts[i%64])
				return nil
			}},
			{"prepare", func(i int) error { return m.Prepare(requests[i%64], &p) }},
			{"all", func(i int) error {
				req, err := openai.Parse(prompt.Chat, bodies[i%64], openai.Limits{})
				if err != nil {
					return err
				}
				return m.Prepare(req, &p)
			}},
		}
		for _, s := range steps {
			b.Run(fmt.Sprintf("chars=%d/step=%s", chars, s.name), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(bodies[0])))
				for i := 0; b.Loop(); i++ {
					if err := s.run(i); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkPrepareOnCores: does preparing chat requests scale with cores? Each goroutine parses, renders and tokenizes new
// conversations of 4,000 characters.
//
//	make bench-cores
func BenchmarkPrepareOnCores(b *testing.B) {
	m := loadModel(b)
	var bodies [64][]byte
	for i := range bodies {
		bodies[i] = conversation(4000, uint64(1000*i))
	}

	var clients atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(par *testing.PB) {
		var p prompt.Prompt
		for i := int(clients.Add(1)) * 7; par.Next(); i++ {
			req, err := openai.Parse(prompt.Chat, bodies[i%64], openai.Limits{})
			if err == nil {
				err = m.Prepare(req, &p)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}
