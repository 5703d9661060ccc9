package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// sampleTexts are tokenized here and by the engine: words, white space, digits, letters of several
// scripts, and code. A chat follows them.
var sampleTexts = []string{
	"Hello, world! It is 12345 o'clock.",
	"  two spaces,\n\n\ta tab\r\nand lines ",
	"naïve façade — 漢字とかな 한글 Привет 🙂",
	"def f(x):\n    return x**2  # {\"a\": [1, 2]}\n",
}

const sampleChat = `"messages": [{"role": "user", "content": "What is 2 + 2?"}]`

// sampleRequests are the members of a request for each sample, without the model's name.
func sampleRequests() []string {
	var all []string
	for _, t := range sampleTexts {
		text, _ := json.Marshal(t)
		all = append(all, fmt.Sprintf(`"prompt": %s`, text))
	}
	return append(all, sampleChat)
}

// isChat reports whether the sample of that number is the chat.
func isChat(sample int) bool { return sample == len(sampleTexts) }

// loadModel loads a model of the configuration and tokenizes the samples with it.
func loadModel(ctx context.Context, m *config.Model) modelSeen {
	s := modelSeen{name: m.Name, names: append([]string{m.Name}, m.Aliases...), path: m.Path, blockSize: int(m.BlockSize)}
	for _, a := range m.Adapters {
		if a.Path == "" { // others are loaded when requests for them come
			s.adapters = append(s.adapters, a.Name)
		}
	}
	s.contextLength, s.lengthIsSet = m.ContextLength, m.ContextLength > 0
	if m.Path == "" {
		return s
	}
	loaded, err := modelfile.Load(ctx, m.Path)
	if err != nil {
		s.err = err
		return s
	}
	loaded = loaded.WithContextLength(m.ContextLength)
	s.contextLength = loaded.ContextLength()

	p := prompt.Prompt{Now: time.Now()}
	for i, members := range sampleRequests() {
		endpoint := openai.Completions
		if isChat(i) {
			endpoint = openai.Chat
		}
		req, err := openai.Parse(endpoint, []byte(`{"model": "-", `+members+"}"), openai.Limits{})
		if err == nil {
			err = loaded.Prepare(req, &p)
		}
		if err != nil { // a model without a chat template has no chats
			s.tokens = append(s.tokens, nil)
			continue
		}
		s.tokens = append(s.tokens, slices.Clone(p.Tokens))
	}
	return s
}

// askEngine asks one engine, and then reads the sockets of its ranks at the same time.
func (w *workerSeen) askEngine(ctx context.Context, at engineAt, m *modelSeen, wait time.Duration) {
	w.engine = askEngine(ctx, at, w, m)
	w.askTransfer(ctx)

	endpoints := w.endpoints()
	w.sockets = make([]socketSeen, len(endpoints))
	var running sync.WaitGroup
	for i, e := range endpoints {
		s := &w.sockets[i]
		running.Go(func() { s.readEvents(ctx, w.kind, e, wait) })
	}
	running.Wait()
}

// askTransfer connects to the address by which other engines fetch the worker's KV cache. SGLang has its bootstrap server on prefill
// workers alone.
func (w *workerSeen) askTransfer(ctx context.Context) {
	if w.transferAt == "" || w.transfer == fleet.TransferBootstrap.String() && w.role != fleet.Prefill.String() {
		return
	}
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", w.transferAt)
	if err != nil {
		w.transferErr = err
		return
	}
	_ = conn.Close()
}

// askEngine reads an engine's properties from its HTTP server.
func askEngine(ctx context.Context, at engineAt, w *workerSeen, m *modelSeen) engineSeen {
	var e engineSeen
	at.base = "http://" + w.address
	var list struct{ Data []servedModel }
	e.clockAhead, e.err = getJSON(ctx, at.client, at.base+"/v1/models", &list)
	if e.err != nil {
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		e.needsTLS = !at.engines.Encrypts(w.address) && enginetls.IsServed(ctx, w.address)
		return e
	}
	e.served = list.Data

	model := e.servedName(m)
	e.askMetrics(ctx, at, w.kind, model)
	e.sources, e.sourcesErr = kvsource.Discover(ctx, at.client, at.base)
	e.askOptions(ctx, at, w.kind, model)
	e.tokens = tokenizeThere(ctx, at, w.kind, model)
	return e
}

// servedName returns the name under which the engine serves the model.
func (e *engineSeen) servedName(m *modelSeen) string {
	for _, s := range e.served {
		if m != nil && slices.Contains(m.names, s.ID) {
			return s.ID
		}
	}
	if len(e.served) > 0 {
		return e.served[0].ID
	}
	return ""
}

// tokenizeThere has the engine tokenize the samples. Samples that it cannot tokenize have no tokens. It returns nil if the engine fails.
func tokenizeThere(ctx context.Context, at engineAt, kind *engines.Kind, model string) [][]uint32 {
	name, _ := json.Marshal(model)
	var all [][]uint32
	for i, members := range sampleRequests() {
		body := fmt.Sprintf(`{"model": %s, %s}`, name, members)
		if kind.Pages == engines.LlamaPages {
			if isChat(i) { // llama.cpp's /tokenize renders no chats
				all = append(all, nil)
				continue
			}
			text, _ := json.Marshal(sampleTexts[i])
			body = fmt.Sprintf(`{"content": %s, "add_special": true, "parse_special": true}`, text)
		}

		tokens, err := tokenizeOne(ctx, at, body)
		status := statusError{}
		if errors.As(err, &status) && (status.status == http.StatusNotFound || isChat(i)) {
			tokens, err = nil, nil
		}
		if err != nil {
			return nil
		}
		all = append(all, tokens)
	}
	return all
}

func tokenizeOne(ctx context.Context, at engineAt, body string) ([]uint32, error) {
	answer, _, err := request(ctx, at.client, http.MethodPost, at.base+"/tokenize", []byte(body))
	if err != nil {
		return nil, err
	}
	var v struct{ Tokens []uint32 }
	err = json.Unmarshal(answer, &v)
	return v.Tokens, err
}

// endpoints returns the event sockets to read: the sockets that the router is configured to read,
// or for workers that are not in the configuration the sockets that the engine reports.
func (w *workerSeen) endpoints() []kvsource.Socket {
	if !w.fromFile || kvsource.Discovered(w.kvEvents) {
		return w.engine.sources
	}
	if w.kvEvents == "" || kvsource.Bound(w.kvEvents) {
		return nil
	}

	var all []kvsource.Socket
	for rank := range w.ranks {
		if at, err := kvsource.ConfiguredSocket(w.kvEvents, w.kvReplay, rank); err == nil {
			all = append(all, at)
		}
	}
	return all
}

// readEvents reads one socket for a while, from as far back as its replay goes.
func (s *socketSeen) readEvents(ctx context.Context, kind *engines.Kind, at kvsource.Socket, wait time.Duration) {
	s.rank = at.Rank
	s.endpoint = at.Endpoint
	s.hadReplay = at.Replay != ""
	s.roots = map[root]kvevent.EngineHash{}
	dialect := kvsource.DialectOf(kind.Name, at.Endpoint)
	if dialect == kvevent.TRTLLM {
		return // reading TensorRT-LLM's events removes them, and the router would miss them
	}
	src, err := kvsource.New(kvsource.Config{
		Endpoint: at.Endpoint, Replay: at.Replay, Topic: at.Topic, Rank: at.Rank, Dialect: dialect, Timeout: wait, Probe: -1,
	})
	if err != nil {
		s.err = err
		return
	}

	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s.err = src.Run(ctx, kvsource.Batches(func(b *kvevent.Batch) { s.countBatch(b, time.Now()) }))

	stats := src.Stats()
	s.malformed = stats.Malformed
	if stats.Connects == 0 {
		s.err = errors.New(stats.LastError)
	} else if stats.Malformed > 0 {
		s.parseError = stats.LastError
	}
}

// maxRoots bounds how many first blocks are stored to compare the hashes of engines.
const maxRoots = 4096

// countBatch counts a message and its blocks.
func (s *socketSeen) countBatch(b *kvevent.Batch, now time.Time) {
	s.messages++
	s.unknown += b.Unknown
	if b.Seconds > 0 {
		s.sentAt = time.UnixMicro(int64(b.Seconds * 1e6))
		s.receivedAt = now
	}

	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind != kvevent.Stored || e.Tier != 0 || e.Window != 0 {
			continue
		}
		s.stored += len(e.Hashes)
		s.blockSize = max(e.BlockSize, 0)
		if len(e.Blocks) == 0 {
			s.noTokens += len(e.Hashes)
		} else if !e.HasParent && len(s.roots) < maxRoots {
			s.roots[root{e.Blocks[0], e.BlockSize}] = e.Hashes[0]
		}
	}
}
