// Package endpoints sends one request to each endpoint of the API, through a gateway, and reports how the gateway routed it and what the
// engine answered. Its results are docs/results/endpoints.json, and the table in docs/endpoints.md is made of them.
//
// Two programs play the requests. A scenario plays them with the simulator, and compares the file with what it finds.
// `make test-endpoints` plays them with real engines, and replaces their columns in the file.
package endpoints

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/test/process"
)

// request is one kind of request.
type request struct {
	name string // of its row
	path string // with MODEL in place of the model's name
	body string // JSON, with MODEL, VECTORS and TEXT in it; empty for GET
	form bool   // the body is sent as the fields of a form
}

// long has several blocks of any engine. Nothing else on an engine has it.
var long = strings.Repeat("The keeper of the lighthouse writes down each ship that passes. ", 20)

// requests are in the order of the table's rows.
var requests = []request{
	{path: "/v1/chat/completions", body: `{"model":"MODEL","messages":[{"role":"user","content":"Chat: TEXT"}],"max_tokens":4}`},
	{path: "/v1/completions", body: `{"model":"MODEL","prompt":"Completion: TEXT","max_tokens":4}`},
	{path: "/v1/messages", body: `{"model":"MODEL","messages":[{"role":"user","content":"Message: TEXT"}],"max_tokens":4}`},
	{path: "/v1/responses", body: `{"model":"MODEL","input":"Response: TEXT","max_output_tokens":16}`},
	{
		name: "`/v1/responses`, `previous_response_id`", path: "/v1/responses",
		body: `{"model":"MODEL","input":"Again: TEXT","previous_response_id":"resp_1","max_output_tokens":16}`,
	},
	{path: "/v1/embeddings", body: `{"model":"VECTORS","input":"a text"}`},
	{path: "/v1/messages/count_tokens", body: `{"model":"MODEL","messages":[{"role":"user","content":"hi"}]}`},
	{path: "/v1/rerank", body: `{"model":"VECTORS","query":"red","documents":["red","blue"]}`},
	{path: "/v2/rerank", body: `{"model":"VECTORS","query":"red","documents":["red","blue"]}`},
	{path: "/rerank", body: `{"model":"VECTORS","query":"red","documents":["red","blue"]}`},
	{path: "/v1/score", body: `{"model":"VECTORS","text_1":"red","text_2":["red","blue"]}`},
	{path: "/score", body: `{"model":"VECTORS","text_1":"red","text_2":["red","blue"]}`},
	{path: "/classify", body: `{"model":"VECTORS","input":"a text"}`},
	{path: "/pooling", body: `{"model":"VECTORS","input":"a text"}`},
	{path: "/tokenize", body: `{"model":"MODEL","prompt":"a text","content":"a text"}`},
	{path: "/detokenize", body: `{"model":"MODEL","tokens":[100,200]}`},
	{path: "/v1/audio/speech", body: `{"model":"MODEL","input":"a text","voice":"alloy"}`},
	{path: "/v1/audio/transcriptions", form: true, body: `{"model":"MODEL","file":"no sound"}`},
	{path: "/v1/audio/translations", form: true, body: `{"model":"MODEL","file":"no sound"}`},
	{path: "/v1/images/generations", body: `{"model":"MODEL","prompt":"a ship"}`},
	{path: "/v1/images/edits", form: true, body: `{"model":"MODEL","prompt":"a ship","image":"no image"}`},
	{path: "/v1/moderations", body: `{"model":"MODEL","input":"a text"}`},
	{path: "/v1/models"},
	{path: "/v1/models/MODEL"},
	{path: "/health"},
	{path: "/live"},
	{path: "/openapi.json"},
	{name: "any other, such as `/v1/batches`", path: "/v1/batches", body: `{"model":"MODEL"}`},
}

// row returns the name of the request's row.
func (r *request) row() string {
	if r.name != "" {
		return r.name
	}
	return "`" + strings.ReplaceAll(r.path, "MODEL", "NAME") + "`"
}

// The ways in which a gateway serves a request.
const (
	exact     = "exact"   // by the prompt, whose tokens and cached tokens the engine reported as expected
	bySession = "session" // by the session, without the prompt
	byLoad    = "load"    // by the load of the workers
	answered  = "gateway" // the gateway has answered by itself
)

// Result is how one request was routed and answered.
type Result struct {
	Routed string `json:"routed"`
	// Why is the reason why a prompt was not read, or the code of the gateway's error.
	Why string `json:"why,omitempty"`
	// Status is the answer's. It is 0 if another engine stood in for the column's.
	Status int `json:"status,omitempty"`
}

// Models are the names of the models that requests ask for: the one that generates, and the one for vectors, which may be the same.
type Models struct{ Model, Vectors string }

// patience is the longest time in which an engine's cache becomes known after an answer.
const patience = 10 * time.Second

// Play sends each request twice, one after another, and returns the results of the second ones by row. A prompt counts as exact if the
// engine reported the tokens that decisions expected, the second one some of them in the cache.
func Play(ctx context.Context, g *process.Gateway, m Models) (map[string]Result, error) {
	p := &player{Gateway: g, Models: m}
	if err := p.countUnread(ctx); err != nil {
		return nil, err
	}
	results := map[string]Result{}
	for _, r := range requests {
		_, err := p.play(ctx, &r, false)
		if err == nil {
			err = process.Await(ctx, patience, func(ctx context.Context) (err error) {
				results[r.row()], err = p.play(ctx, &r, true)
				return err
			})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.row(), err)
		}
	}
	return results, nil
}

// player plays requests one after another.
type player struct {
	*process.Gateway
	Models
	unread map[string]string // the counts of prompts that were not read, by the reason
	grown  string            // the reason whose count has grown; empty if none has
}

// play sends one request. Again means that the engine has computed the same prompt before.
func (p *player) play(ctx context.Context, r *request, again bool) (Result, error) {
	req, err := p.newRequest(ctx, r)
	if err != nil {
		return Result{}, err
	}
	resp, err := p.Client.Do(req)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return Result{}, err
	}

	id := resp.Header.Get("X-Stator-Decision")
	d, err := p.decisionOf(ctx, id)
	if err != nil {
		return Result{}, err
	}
	if d == nil || d.Error != nil {
		return Result{answered, codeOf(text), resp.StatusCode}, nil
	}
	if err := p.countUnread(ctx); err != nil {
		return Result{}, err
	}
	now := Result{Status: resp.StatusCode, Why: p.grown}
	switch d.Policy {
	case pick.KV:
		now.Routed = exact
		return now, compare(d, text, again)
	case pick.Session:
		now.Routed = bySession
	case pick.LeastLoaded:
		now.Routed = byLoad
	default:
		return now, fmt.Errorf("the policy was %s", d.Policy)
	}
	return now, nil
}

// newRequest returns a request with its body. It names a session.
func (p *player) newRequest(ctx context.Context, r *request) (*http.Request, error) {
	fill := strings.NewReplacer("MODEL", p.Model, "VECTORS", p.Vectors, "TEXT", long)
	method := http.MethodPost
	if r.body == "" {
		method = http.MethodGet
	}
	b := body{text: fill.Replace(r.body), kind: "application/json"}
	if r.form {
		if err := b.makeForm(); err != nil {
			return nil, err
		}
	}

	req, err := http.NewRequestWithContext(ctx, method, p.URL+fill.Replace(r.path), strings.NewReader(b.text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", b.kind)
	req.Header.Set("X-Session-Id", "endpoints")
	return req, nil
}

// body is a body with its content type.
type body struct{ text, kind string }

// makeForm changes a JSON object into a form. Its member file or image becomes a file.
func (b *body) makeForm() error {
	var members map[string]string
	if err := json.Unmarshal([]byte(b.text), &members); err != nil {
		return err
	}
	var buffer bytes.Buffer
	w := multipart.NewWriter(&buffer)
	for name, value := range members {
		field, err := w.CreateFormField(name)
		if name == "file" || name == "image" {
			field, err = w.CreateFormFile(name, "a.bin")
		}
		if err != nil {
			return err
		}
		if _, err := io.WriteString(field, value); err != nil {
			return err
		}
	}

	err := w.Close()
	*b = body{text: buffer.String(), kind: w.FormDataContentType()}
	return err
}

// decisionOf returns the decision about a request; nil if it has none.
func (p *player) decisionOf(ctx context.Context, id string) (*decisionlog.Decision, error) {
	if id == "" {
		return nil, nil
	}
	page, err := p.Get(ctx, p.Admin+"/debug/decisions/"+id+"?format=json")
	if err != nil {
		return nil, err
	}
	d := &decisionlog.Decision{}
	return d, json.Unmarshal(page, d)
}

// unreadMetric counts the prompts that were not read, by the reason.
const unreadMetric = `stator_route_unread_requests_total{reason="`

// countUnread reads the counts of unreadMetric.
func (p *player) countUnread(ctx context.Context) error {
	page, err := p.Get(ctx, p.Admin+"/metrics")
	if err != nil {
		return err
	}
	p.grown = ""
	counts := map[string]string{}
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, unreadMetric); ok {
			reason, count, _ := strings.Cut(rest, `"} `)
			counts[reason] = count
			if count != p.unread[reason] {
				p.grown = reason
			}
		}
	}
	p.unread = counts
	return nil
}

// codeOf returns the code of an error in OpenAI's form; empty of any other body.
func codeOf(text []byte) string {
	var answer struct{ Error struct{ Code string } }
	_ = json.Unmarshal(text, &answer) // an answer that is no error has no code
	return answer.Error.Code
}

// compare returns an error if the engine reported other tokens than the decision expected: of cached ones, by more than a block. A prompt
// that was computed before must have some in the cache.
func compare(d *decisionlog.Decision, text []byte, again bool) error {
	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Input   int `json:"input_tokens"`
			Read    int `json:"cache_read_input_tokens"`
			Created int `json:"cache_creation_input_tokens"`
			Chat    struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
			Response struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}

	u := answer.Usage
	tokens, cached := u.Prompt+u.Input+u.Read+u.Created, u.Chat.Cached+u.Response.Cached+u.Read
	off := cached - d.CachedTokens
	if again && d.CachedTokens == 0 || tokens != d.PromptTokens || off < -d.BlockSize || off > d.BlockSize {
		return fmt.Errorf("%d prompt tokens and %d cached ones were expected; the engine answered %s", d.PromptTokens, d.CachedTokens, text)
	}
	return nil
}
