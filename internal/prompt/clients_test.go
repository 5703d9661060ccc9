package prompt_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"testing"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestRequestsOfClients: the prompts of all requests that agents were recorded to send are read.
func TestRequestsOfClients(t *testing.T) {
	packed, err := os.ReadFile("testdata/clients.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}

	m := sim(t)
	counts := map[openai.Endpoint]int{}
	for _, line := range bytes.Split(bytes.TrimSpace(lines), []byte("\n")) {
		var sample struct {
			Path string
			Body json.RawMessage
		}
		if err := json.Unmarshal(line, &sample); err != nil {
			t.Fatal(err)
		}
		at, err := url.Parse(sample.Path)
		if err != nil {
			t.Fatal(err)
		}
		ep, ok := map[string]openai.Endpoint{
			"/v1/chat/completions": prompt.Chat, "/v1/messages": prompt.Messages, "/v1/responses": prompt.Responses,
		}[at.Path]
		if !ok {
			t.Fatalf("%s is not read", sample.Path)
		}

		var p prompt.Prompt
		if err := m.Prepare(parse(t, ep, string(sample.Body)), &p); err != nil {
			t.Fatalf("%s: %v", sample.Path, err)
		}
		if p.Unread != openai.WhyRead || len(p.Tokens) < 20 {
			t.Errorf("%s: unread by %v, %d tokens", sample.Path, p.Unread, len(p.Tokens))
		}
		counts[ep]++
	}
	if counts[prompt.Chat] < 15 || counts[prompt.Messages] < 15 || counts[prompt.Responses] < 15 {
		t.Errorf("%v test too little", counts)
	}
}
