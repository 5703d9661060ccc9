package enginesim_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// letters is a model whose tokens are the bytes of its input, and whose vocabulary has a word for
// each of 256 ids.
type letters struct{}

func (letters) ContextLength() int { return 4096 }
func (letters) VocabSize() int     { return 256 }

func (letters) AppendDecode(dst []byte, ids ...uint32) []byte {
	for _, id := range ids {
		dst = append(dst, ' ', 'a'+byte(id>>4), 'a'+byte(id&15))
	}
	return dst
}

func (letters) Prepare(req *openai.Request, dst *prompt.Prompt) error {
	text := ""
	for _, m := range req.Messages {
		text += m.Role + ":" + m.Content + ";"
	}
	dst.Tokens = dst.Tokens[:0]
	if len(req.Prompts) > 0 {
		text = req.Prompts[0].Text
		dst.Tokens = append(dst.Tokens, req.Prompts[0].Tokens...)
	}
	for _, c := range []byte(text) {
		dst.Tokens = append(dst.Tokens, uint32(c))
	}
	return nil
}

// running is a simulated engine for the length of a test.
type running struct {
	*enginesim.Sim
	t    *testing.T
	stop func() error
	wait func() error // until it ends without being stopped

	settle func() // stops it, whether or not it has ended
}

func start(t *testing.T, change func(*enginesim.Config)) *running {
	t.Helper()
	cfg := enginesim.Config{
		ModelName: "tiny", Model: letters{}, Vocabulary: letters{}, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0",
		Engine: engine.Config{Blocks: 64, BlockSize: 4, Timing: perfmodel.Fixed{}},
	}
	if change != nil {
		change(&cfg)
	}
	sim, err := enginesim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sim.Run(ctx) }()
	stopped := false
	r := &running{Sim: sim, t: t}
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	r.wait = func() error {
		stopped = true
		defer cancel()
		return <-done
	}
	r.settle = func() {
		cancel()
		<-done
		stopped = true
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := r.stop(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	if cfg.StartDelay == 0 {
		r.until("ready", func() bool { status, _ := r.get("/health"); return status == 200 })
	}
	return r
}

func (r *running) until(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("never %s", what)
		}
	}
}

func (r *running) get(path string) (int, string) { return r.do("GET", path, "") }

func (r *running) post(path, body string) (int, string) { return r.do("POST", path, body) }

func (r *running) do(method, path, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.Addr()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Answer  int `json:"completion_tokens"`
	Total   int `json:"total_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type reply struct {
	ID, Object, Model string
	Choices           []struct {
		Index   int
		Text    string
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		Reason  string `json:"finish_reason"`
	}
	Usage *usage
}

func (r *running) ask(path, body string) reply {
	r.t.Helper()
	status, text := r.post(path, body)
	var got reply
	if err := json.Unmarshal([]byte(text), &got); status != 200 || err != nil {
		r.t.Fatalf("%d, %v: %s", status, err, text)
	}
	return got
}

const chat = `{"model":"tiny","messages":[{"role":"user","content":"Hello there, engine"}],"max_tokens":5`

// TestChatAnswersRepeatAndUseTheCache sends chats: the answer depends on the prompt and the seed, and a repeated
// prompt is found in the cache until the cache is reset.
func TestChatAnswersRepeatAndUseTheCache(t *testing.T) {
	r := start(t, nil)
	first := r.ask("/v1/chat/completions", chat+"}")
	if len(first.Choices) != 1 || first.Object != "chat.completion" || !strings.HasPrefix(first.ID, "chatcmpl-") || first.Model != "tiny" {
		t.Fatalf("%+v", first)
	}
	c := first.Choices[0]
	if words := strings.Fields(c.Message.Content); len(words) != 5 || c.Reason != "length" || c.Message.Role != "assistant" {
		t.Errorf("%+v", c)
	}
	if want := (usage{Prompt: 25, Answer: 5, Total: 30}); *first.Usage != want {
		t.Errorf("usage %+v, want %+v", *first.Usage, want)
	}
	again := r.ask("/v1/chat/completions", chat+"}")
	if again.Choices[0].Message.Content != c.Message.Content {
		t.Errorf("the same prompt answers %q and %q", c.Message.Content, again.Choices[0].Message.Content)
	}
	if again.Usage.Details.Cached != 24 {
		t.Errorf("%d tokens cached, want 24", again.Usage.Details.Cached)
	}
	seeded := r.ask("/v1/chat/completions", chat+`,"seed":7}`)
	if seeded.Choices[0].Message.Content == c.Message.Content {
		t.Error("another seed gives the same answer")
	}
	open := r.ask("/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`)
	if open.Choices[0].Reason != "stop" || open.Usage.Answer < 32 || open.Usage.Answer > 96 {
		t.Errorf("an answer without a bound: %s after %d", open.Choices[0].Reason, open.Usage.Answer)
	}
	if status, _ := r.post("/reset_prefix_cache", ""); status != 200 {
		t.Errorf("reset: %d", status)
	}
	if fresh := r.ask("/v1/chat/completions", chat+"}"); fresh.Usage.Details.Cached != 0 {
		t.Errorf("%d tokens cached after a reset", fresh.Usage.Details.Cached)
	}
}

// TestStreamHasTheWholeAnswer compares the events of a stream with the answer in one piece.
func TestStreamHasTheWholeAnswer(t *testing.T) {
	r := start(t, nil)
	whole := r.ask("/v1/chat/completions", chat+`,"n":2}`)
	_, body := r.post("/v1/chat/completions", chat+`,"n":2,"stream":true,"stream_options":{"include_usage":true}}`)
	texts, reasons, roles := [2]string{}, [2]string{}, 0
	var last *usage
	chunks := 0
	lines := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	for _, line := range lines[:len(lines)-1] {
		var chunk reply
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &chunk); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		for _, c := range chunk.Choices {
			if c.Delta.Role != "" {
				roles++
			}
			texts[c.Index] += c.Delta.Content
			reasons[c.Index] += c.Reason
			chunks++
		}
		last = chunk.Usage
	}
	for i, text := range texts {
		if text != whole.Choices[i].Message.Content || reasons[i] != "length" {
			t.Errorf("choice %d: %q %s, want %q", i, text, reasons[i], whole.Choices[i].Message.Content)
		}
	}
	if texts[0] == texts[1] || roles != 2 || chunks != 12 || lines[len(lines)-1] != "data: [DONE]" {
		t.Errorf("%d roles, %d chunks, ends %q", roles, chunks, lines[len(lines)-1])
	}
	if last == nil || last.Prompt != 25 || last.Answer != 10 || last.Details.Cached != 24 {
		t.Errorf("usage %+v", last)
	}
}

// TestStreamIntervalBoundsWrites counts the chunks of a stream's HTTP body. Each flush makes one: the headers are flushed before
// the first.
func TestStreamIntervalBoundsWrites(t *testing.T) {
	r := start(t, func(c *enginesim.Config) {
		c.StreamInterval = 5
		c.Engine.Timing = perfmodel.Fixed{DecodeTime: 2 * time.Millisecond}
	})
	conn, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	body := `{"model":"tiny","prompt":"abc","max_tokens":11,"stream":true}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: sim\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	raw, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if events := strings.Count(string(raw), `"index":0`); events != 11 {
		t.Errorf("%d tokens, want 11", events)
	}
	// Tokens 1, 2 to 6, and 7 to 11.
	if chunks := len(regexp.MustCompile(`(?m)^[0-9a-f]+\r$`).FindAll(raw, -1)); chunks < 2 || chunks > 4 {
		t.Errorf("%d chunks, want 3 and the empty one at the end:\n%s", chunks, raw)
	}
}

// TestCompletionsAndEmbeddings sends prompts as text, as tokens and as lists, to the model, an alias and an adapter.
func TestCompletionsAndEmbeddings(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.Adapters, c.Aliases = []string{"poet"}, []string{"small"} })
	text := r.ask("/v1/completions", `{"model":"tiny","prompt":"AB","max_tokens":3}`)
	ids := r.ask("/v1/completions", `{"model":"tiny","prompt":[65,66],"max_tokens":3}`)
	if text.Choices[0].Text == "" || text.Choices[0].Text != ids.Choices[0].Text || text.Object != "text_completion" {
		t.Errorf("text %+v, ids %+v", text, ids)
	}
	long := `"prompt":"A prompt of a few blocks","max_tokens":1}`
	r.ask("/v1/completions", `{"model":"tiny",`+long)
	for model, cached := range map[string]int{"small": 20, "poet": 0} {
		if got := r.ask("/v1/completions", `{"model":"`+model+`",`+long); got.Usage.Details.Cached != cached || got.Model != model {
			t.Errorf("%s: %d tokens cached, want %d", got.Model, got.Usage.Details.Cached, cached)
		}
	}
	list := r.ask("/v1/completions", `{"model":"poet","prompt":["AB","CDE"],"n":2,"max_tokens":3}`)
	if len(list.Choices) != 4 || list.Choices[3].Index != 3 || list.Usage.Prompt != 5 || list.Usage.Answer != 12 {
		t.Errorf("%+v %+v", list, list.Usage)
	}
	status, body := r.post("/v1/embeddings", `{"model":"tiny","input":["AB","AB","C"]}`)
	var e struct {
		Data  []struct{ Embedding []float64 }
		Usage usage
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || status != 200 {
		t.Fatalf("%d %v %s", status, err, body)
	}
	if len(e.Data) != 3 || fmt.Sprint(e.Data[0]) != fmt.Sprint(e.Data[1]) || fmt.Sprint(e.Data[0]) == fmt.Sprint(e.Data[2]) || e.Usage.Prompt != 5 || e.Usage.Answer != 0 {
		t.Errorf("%s", body)
	}
}

// TestEmbeddingsInBase64: the bytes are the float32 of the same embedding, of the length that the request asks for.
func TestEmbeddingsInBase64(t *testing.T) {
	r := start(t, func(*enginesim.Config) {})
	var floats struct {
		Data []struct{ Embedding []float32 }
	}
	var bytes struct{ Data []struct{ Embedding []byte } }
	for format, into := range map[string]any{"float": &floats, "base64": &bytes} {
		status, body := r.post("/v1/embeddings", fmt.Sprintf(`{"model":"tiny","input":"AB","dimensions":7,"encoding_format":%q}`, format))
		if err := json.Unmarshal([]byte(body), into); err != nil || status != 200 {
			t.Fatalf("%d %v %s", status, err, body)
		}
	}
	want := floats.Data[0].Embedding
	if len(want) != 7 || len(bytes.Data[0].Embedding) != 4*7 {
		t.Fatalf("%d values, %d bytes", len(want), len(bytes.Data[0].Embedding))
	}
	for i, v := range want {
		got := math.Float32frombits(binary.LittleEndian.Uint32(bytes.Data[0].Embedding[4*i:]))
		if math.Abs(float64(got-v)) > 1e-5 {
			t.Errorf("value %d is %g, want %g", i, got, v)
		}
	}
}

// TestEcho: completions with echo begin with their prompt. With max_tokens 0 they are the prompt alone, with vLLM's
// count of one token and its reason "length". Without echo vLLM refuses max_tokens 0.
func TestEcho(t *testing.T) {
	model, err := prompt.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, func(c *enginesim.Config) { c.Model, c.Vocabulary = model, model.Tokenizer() })
	ids, err := json.Marshal(model.Tokenizer().Encode(nil, "AB"))
	if err != nil {
		t.Fatal(err)
	}

	plain := r.ask("/v1/completions", `{"model":"tiny","prompt":"AB","max_tokens":3}`).Choices[0].Text
	for _, tt := range []struct{ body, want string }{
		{`"prompt":"AB","max_tokens":3`, "AB" + plain},
		{`"prompt":` + string(ids) + `,"max_tokens":3`, "AB" + plain},
		{`"prompt":"AB","max_tokens":0`, "AB"},
		{`"prompt":` + string(ids) + `,"max_tokens":0,"n":2`, "AB"},
	} {
		body := `{"model":"tiny","echo":true,` + tt.body
		got := r.ask("/v1/completions", body+"}")
		for i, c := range got.Choices {
			if i == 0 && c.Text != tt.want || c.Reason != "length" {
				t.Errorf("%s: %q, %s", tt.body, c.Text, c.Reason)
			}
		}
		if strings.Contains(tt.body, `:0`) && got.Usage.Answer != len(got.Choices) {
			t.Errorf("%s: %+v", tt.body, got.Usage)
		}

		_, events := r.post("/v1/completions", body+`,"stream":true}`)
		if streamed := streamedText(t, events); streamed != tt.want {
			t.Errorf("%s: the stream has %q", tt.body, streamed)
		}
	}

	status, body := r.post("/v1/completions", `{"model":"tiny","prompt":"AB","max_tokens":0}`)
	if status != 400 || !strings.Contains(body, `"type":"BadRequestError","param":"max_tokens","code":400`) {
		t.Errorf("without echo: %d %s", status, body)
	}
}

// streamedText returns the text of the first choice of a stream.
func streamedText(t *testing.T, events string) (text string) {
	t.Helper()
	for data := range strings.SplitSeq(events, "\n\n") {
		var chunk reply
		data = strings.TrimPrefix(data, "data: ")
		if data == "" || data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for _, c := range chunk.Choices {
			if c.Index == 0 {
				text += c.Text
			}
		}
	}
	return text
}

// TestRefusedRequestsGetVLLMsErrors checks the status and the text of each refusal. A refused request is not queued.
func TestRefusedRequestsGetVLLMsErrors(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.MaxBody = 2000; c.Engine.MaxWaiting = 1; c.MaxAnswers = 4 })
	tests := []struct {
		name, path, body string
		status           int
		want             string
	}{
		{"unknown model", "/v1/chat/completions", strings.Replace(chat, "tiny", "big", 1) + "}", 404,
			`{"error":{"message":"The model ` + "`big`" + ` does not exist.","type":"NotFoundError","param":"model","code":404}}`},
		{"bad JSON", "/v1/chat/completions", `{"model"`, 400, `"type":"BadRequestError"`},
		{"too long", "/v1/completions", `{"model":"tiny","prompt":"` + strings.Repeat("x", 300) + `"}`, 400,
			"This model's maximum context length is 256 tokens. However, your request has 300 input tokens."},
		{"too large", "/v1/completions", `{"model":"tiny","prompt":"` + strings.Repeat("x", 3000) + `"}`, 413, "larger than 2000 bytes"},
		{"queue full", "/v1/completions", `{"model":"tiny","prompt":["a","b"]}`, 503, "queue is full"},
		{"too many answers", "/v1/completions", `{"model":"tiny","prompt":"a","n":5}`, 400, "at most 4 answers"},
		{"empty prompt", "/v1/completions", `{"model":"tiny","prompt":""}`, 400, "prompt"},
		{"text that is no request", "/tokenize", `{"messages":7}`, 400, `"type":"BadRequestError"`},
		{"text that is too large", "/tokenize", strings.Repeat("x", 3000), 413, "larger than 2000 bytes"},
		{"unknown path", "/v1/rerank", `{}`, 404, `"type":"NotFoundError"`},
		{"unknown form of embeddings", "/v1/embeddings", `{"model":"tiny","input":"A","encoding_format":"text"}`, 400, "float or base64"},
		{"long embeddings", "/v1/embeddings", `{"model":"tiny","input":"A","dimensions":9999}`, 400, "between 1 and 8192"},
	}
	for _, tt := range tests {
		status, body := r.post(tt.path, tt.body)
		if status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s", tt.name, status, body)
		}
		if !json.Valid([]byte(body)) {
			t.Errorf("%s: not JSON: %s", tt.name, body)
		}
	}
	_, metrics := r.get("/metrics")
	if !strings.Contains(metrics, `vllm:num_requests_waiting{engine="0",model_name="tiny"} 0`) {
		t.Error("a refused request waits")
	}
}

// TestPagesDescribeTheEngine reads the pages about models, load, event sockets and metrics, and tokenizes.
func TestPagesDescribeTheEngine(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.Adapters, c.Aliases = []string{"poet"}, []string{"small"} })
	r.ask("/v1/chat/completions", chat+"}")
	r.ask("/v1/chat/completions", chat+"}")
	events := fmt.Sprintf(`"endpoint":"%s"`, r.EventsEndpoint())
	replay := fmt.Sprintf(`"replay_endpoint":"%s"`, r.ReplayEndpoint())
	for path, wants := range map[string][]string{
		"/v1/models":        {`"id":"tiny"`, `"id":"small"`, `"id":"poet"`, `"parent":"tiny"`, `"max_model_len":4096`},
		"/version":          {`"version":"0.32.0`},
		"/load":             {`"server_load":0`},
		"/kv_event_sources": {`{"0":{`, events, replay, `"buffer_steps":10000`, `"publisher":"zmq"`},
		"/metrics": {
			`vllm:num_requests_running{engine="0",model_name="tiny"} 0`,
			`vllm:num_requests_waiting{engine="0",model_name="tiny"} 0`,
			`vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0`,
			`vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 50`,
			`vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 24`,
			`vllm:generation_tokens_total{engine="0",model_name="tiny"} 10`,
			`vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 2`,
			`vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 8`,
			`vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 2`,
			`vllm:cache_config_info{block_size="4",enable_prefix_caching="True",engine="0",hash_block_size="4",kv_cache_size_tokens="256",model_name="tiny",num_gpu_blocks="64",prefix_caching_hash_algo="xxh3"} 1`,
		},
	} {
		status, body := r.get(path)
		for _, want := range wants {
			if status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: %d, without %s:\n%s", path, status, want, body)
			}
		}
	}
	for body, want := range map[string]string{
		`{"prompt":"AB"}`: `{"count":2,"max_model_len":4096,"token_strs":null,"tokens":[65,66]}`,
		`{"model":"tiny","messages":[{"role":"u","content":"A"}]}`: `"tokens":[117,58,65,59]`,
	} {
		if status, got := r.post("/tokenize", body); status != 200 || !strings.Contains(got, want) {
			t.Errorf("tokenize %s: %d %s", body, status, got)
		}
	}
}

// TestHeadersAtAdmissionAndCancellation checks that the headers of a stream come when it is admitted, and that a
// client that leaves frees the engine at once, in the middle of a prefill of an hour.
func TestHeadersAtAdmissionAndCancellation(t *testing.T) {
	r := start(t, func(c *enginesim.Config) {
		c.Engine.Timing = perfmodel.Fixed{PrefillTime: time.Hour}
		c.Drain = time.Nanosecond
	})
	for _, stream := range []string{"true", "false"} {
		ctx, leave := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+r.Addr()+"/v1/chat/completions", strings.NewReader(chat+`,"stream":`+stream+"}"))
		headers, answered := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(answered)
			resp, err := http.DefaultClient.Do(req)
			close(headers)
			if stream == "true" {
				if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
					t.Errorf("%v %v", resp, err)
				}
			}
			if err == nil {
				defer resp.Body.Close()
				_, _ = io.Copy(io.Discard, resp.Body)
			}
		}()
		load := func(n int) func() bool {
			return func() bool {
				_, m := r.get("/metrics")
				return strings.Contains(m, fmt.Sprintf(`num_requests_running{engine="0",model_name="tiny"} %d`, n)) == (n == 1) &&
					strings.Contains(m, `num_requests_waiting{engine="0",model_name="tiny"} 0`)
			}
		}
		if stream == "true" {
			r.until("running", load(1))
			<-headers // the client must not leave before it has them
		} else {
			// The pass of the first request goes on for an hour, so this one waits.
			r.until("being served", func() bool { _, l := r.get("/load"); return strings.Contains(l, "1") })
		}
		leave()
		<-answered
		r.until("free again", func() bool {
			_, m := r.get("/metrics")
			_, l := r.get("/load")
			return strings.Contains(m, `num_requests_running{engine="0",model_name="tiny"} 0`) &&
				strings.Contains(m, `num_requests_waiting{engine="0",model_name="tiny"} 0`) && strings.Contains(l, "0")
		})
	}
}

// TestLoadingEngineRefusesRequests asks an engine that loads, and waits until it is ready.
func TestLoadingEngineRefusesRequests(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.StartDelay = 50 * time.Millisecond })
	if status, body := r.get("/health"); status != 503 || !strings.Contains(body, "loading") {
		t.Errorf("%d %s", status, body)
	}
	r.until("ready", func() bool { status, _ := r.get("/health"); return status == 200 })
}

// TestStoppingEngineFinishesRequests stops an engine while it streams an answer: the client gets all of it.
func TestStoppingEngineFinishesRequests(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.Engine.Timing = perfmodel.Fixed{DecodeTime: 2 * time.Millisecond} })
	resp, err := http.Post("http://"+r.Addr()+"/v1/chat/completions", "", strings.NewReader(strings.Replace(chat, `"max_tokens":5`, `"max_tokens":50`, 1)+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	tokens, last := 0, ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if line := lines.Text(); line != "" {
			last = line
			tokens += strings.Count(line, `"content":" `)
		}
	}
	if tokens != 50 || last != "data: [DONE]" {
		t.Errorf("%d tokens, the last line is %s", tokens, last)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
