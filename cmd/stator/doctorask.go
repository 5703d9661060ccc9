package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/modelfile"
)

// engineSeen is what an engine says of itself over HTTP.
type engineSeen struct {
	err           error // it does not answer
	served        []servedModel
	blockSize     int    // 0 where it does not say
	hashAlgo      string // of its prefix cache
	cachingOff    bool
	queries, hits float64 // tokens asked of its prefix cache, and found there
	tokens        [][]uint32
	tokenizeErr   error
	sources       []kvsource.Found
	sourcesErr    error
	ahead         time.Duration // its clock before ours
}

type servedModel struct {
	ID     string `json:"id"`
	MaxLen int    `json:"max_model_len"`
}

var doctorClient = &http.Client{Timeout: 5 * time.Second}

// maxAnswer bounds what is read of any page.
const maxAnswer = 16 << 20

// request asks for a page and says how far the server's clock is ahead of ours, as exactly as
// its Date tells: to a second.
func request(ctx context.Context, method, url string, body []byte) (answer []byte, ahead time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("content-type", "application/json")
	before := time.Now()
	resp, err := doctorClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	ahead = clockAhead(resp.Header.Get("date"), before, time.Now())
	defer func() { _ = resp.Body.Close() }()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = statusError{resp.StatusCode, strings.TrimSpace(string(answer[:min(len(answer), 300)]))}
	}
	return answer, ahead, err
}

type statusError struct {
	status int
	body   string
}

func (e statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// clockAhead is 0 where the server's second fits between before and after.
func clockAhead(date string, before, after time.Time) time.Duration {
	at, err := http.ParseTime(date)
	switch {
	case err != nil:
		return 0
	case at.After(after):
		return at.Sub(after)
	case at.Add(time.Second).Before(before):
		return at.Add(time.Second).Sub(before)
	}
	return 0
}

// get reads a page of JSON.
func getJSON(ctx context.Context, url string, v any) (ahead time.Duration, err error) {
	body, ahead, err := request(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ahead, err
	}
	return ahead, json.Unmarshal(body, v)
}

func (r *routerSeen) page(path string) string { return "http://" + r.address + path }

func (r *routerSeen) askFirst(ctx context.Context) {
	_, r.ahead, r.ready = request(ctx, http.MethodGet, r.page("/readyz"), nil)
	if status := (statusError{}); r.ready != nil && !errors.As(r.ready, &status) {
		r.err, r.ready = r.ready, nil
		return
	}
	if _, err := getJSON(ctx, r.page("/debug/fleet?format=json"), &r.ranks); err != nil {
		r.err = err
		return
	}
	_, err := getJSON(ctx, r.page("/debug/feed?format=json"), &r.before)
	r.feedUnavailable = err != nil
	r.earlier, _ = readMetrics(ctx, r.page("/metrics"))
}

func (r *routerSeen) askAgain(ctx context.Context) {
	if r.err != nil || r.feedUnavailable {
		return
	}
	_, err := getJSON(ctx, r.page("/debug/feed?format=json"), &r.after)
	r.feedUnavailable = err != nil
	r.later, _ = readMetrics(ctx, r.page("/metrics"))
}

// samples are a metrics page: name{labels} by its value.
type samples map[string]float64

func readMetrics(ctx context.Context, url string) (samples, error) {
	body, _, err := request(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	all := samples{}
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		end := strings.LastIndexByte(line, ' ')
		if end < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[end+1:], 64); err == nil {
			all[line[:end]] = v
		}
	}
	return all, lines.Err()
}

// sum adds up the samples of a name, whatever their labels.
func (s samples) sum(name string) (total float64) {
	for key, v := range s {
		if n, _, _ := strings.Cut(key, "{"); n == name {
			total += v
		}
	}
	return total
}

// label finds a label's value in the samples of a name.
func (s samples) label(name, label string) string {
	for key := range s {
		n, labels, _ := strings.Cut(key, "{")
		if n != name {
			continue
		}
		for _, before := range []string{"{", ","} {
			if _, rest, ok := strings.Cut("{"+labels, before+label+`="`); ok {
				value, _, _ := strings.Cut(rest, `"`)
				return value
			}
		}
	}
	return ""
}

// doctorTexts are tokenized by us and by the engine: words, white space, digits, letters of
// several scripts, code.
var doctorTexts = []string{
	"Hello, world! It is 12345 o'clock.",
	"  two spaces,\n\n\ta tab\r\nand lines ",
	"naïve façade — 漢字とかな 한글 Привет 🙂",
	"def f(x):\n    return x**2  # {\"a\": [1, 2]}\n",
}

const doctorChat = `"messages": [{"role": "user", "content": "What is 2 + 2?"}]`

// doctorRequests are the same as engines are asked, without the model.
func doctorRequests() (all []string) {
	for _, t := range doctorTexts {
		text, _ := json.Marshal(t)
		all = append(all, fmt.Sprintf(`"prompt": %s`, text))
	}
	return append(all, doctorChat)
}

func seeModel(m *config.Model) modelSeen {
	s := modelSeen{name: m.Name, names: append([]string{m.Name}, m.Aliases...), path: m.Path, blockSize: m.BlockSize}
	loaded, err := modelfile.Load(m.Path)
	if err != nil {
		s.err = err
		return s
	}
	s.contextLength = loaded.ContextLength()
	t := tokenizing{model: loaded}
	for _, r := range doctorRequests() {
		req, err := readRequest([]byte("{" + r + "}"))
		if err == nil {
			err = t.prepare(req)
		}
		if err != nil { // a model without a template has no chats
			s.tokens = append(s.tokens, nil)
			continue
		}
		s.tokens = append(s.tokens, slices.Clone(t.prompt.Tokens))
	}
	return s
}

// seeEngine asks an engine what it says of itself. What it does not know is left out.
func seeEngine(ctx context.Context, w *workerSeen, m *modelSeen) engineSeen {
	var e engineSeen
	base := "http://" + w.address
	var list struct{ Data []servedModel }
	if e.ahead, e.err = getJSON(ctx, base+"/v1/models", &list); e.err != nil {
		return e
	}
	e.served = list.Data
	if page, err := readMetrics(ctx, base+"/metrics"); err == nil {
		e.blockSize, _ = strconv.Atoi(page.label("vllm:cache_config_info", "block_size"))
		e.hashAlgo = page.label("vllm:cache_config_info", "prefix_caching_hash_algo")
		e.cachingOff = page.label("vllm:cache_config_info", "enable_prefix_caching") == "False"
		e.queries, e.hits = page.sum("vllm:prefix_cache_queries_total"), page.sum("vllm:prefix_cache_hits_total")
	}
	e.sources, e.sourcesErr = kvsource.Discover(ctx, doctorClient, base)
	e.tokens, e.tokenizeErr = tokenizeThere(ctx, base, w.kind, e.servedName(m))
	return e
}

// servedName is the name by which the engine knows the model.
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

// tokenizeThere has the engine tokenize the texts. An engine that cannot answers nothing.
func tokenizeThere(ctx context.Context, base, kind, model string) (all [][]uint32, err error) {
	name, _ := json.Marshal(model)
	for i, r := range doctorRequests() {
		body := fmt.Sprintf(`{"model": %s, %s}`, name, r)
		if kind == "llamacpp" {
			if i == len(doctorTexts) {
				all = append(all, nil) // it renders chats elsewhere
				continue
			}
			text, _ := json.Marshal(doctorTexts[i])
			body = fmt.Sprintf(`{"content": %s, "add_special": true, "parse_special": true}`, text)
		}
		answer, _, err := request(ctx, http.MethodPost, base+"/tokenize", []byte(body))
		var v struct{ Tokens []uint32 }
		if err == nil {
			err = json.Unmarshal(answer, &v)
		}
		status := statusError{}
		if errors.As(err, &status) && (status.status == http.StatusNotFound || i == len(doctorTexts)) {
			all = append(all, nil)
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, v.Tokens)
	}
	return all, nil
}
