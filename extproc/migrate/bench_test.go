package migrate

import (
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// BenchmarkPass passes the event of one token.
func BenchmarkPass(b *testing.B) {
	r, _ := Read(openai.Chat, []byte(`{"model":"m","temperature":0,"messages":[{"role":"user","content":"a"}]}`), false)
	s := NewStream(r, &room{left: 1 << 40})
	first := `data: {"id":"chatcmpl-d6cfb252-dfba-4dc3-b500-2f78c91db370","choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1]}` + "\n\n"
	if _, err := s.Pass(nil, []byte(first), true); err != nil {
		b.Fatal(err)
	}
	event := []byte(`data: {"id":"chatcmpl-d6cfb252-dfba-4dc3-b500-2f78c91db370","object":"chat.completion.chunk","created":1795702079,"model":"sim",` +
		`"choices":[{"index":0,"delta":{"content":" transformer"},"logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[12345]}]}` + "\n\n")
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		out, err = s.Pass(out[:0], event, true)
		if err != nil || s.Lost() != "" {
			b.Fatal(err, s.Lost())
		}
	}
	if len(out) != len(event)-len(`,"token_ids":[12345]`) {
		b.Errorf("%s", out)
	}
}
