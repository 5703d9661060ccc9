package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strconv"

	"github.com/stator-project/stator/test/loopback"
)

// vectorsName is the name of the embedding model, and poolingName the name of the engine that serves it.
const (
	vectorsName, poolingName = "tiny-vectors", "c"
	modelRounds              = 20
)

// sideBySide is a kind of request for one of two models.
type sideBySide struct {
	model, path, body string
}

// pooled are requests for the embedding model. %d is the number of the round, so that no two are equal.
var pooled = []sideBySide{
	{vectorsName, "/v1/embeddings", `{"model":"tiny-vectors","input":"the text of round %d"}`},
	{vectorsName, "/v1/embeddings", `{"model":"tiny-vectors","input":["a text","the second of round %d"],"encoding_format":"base64"}`},
	{vectorsName, "/v1/embeddings", `{"model":"tiny-vectors","input":[[2,%d,30,31,3]]}`},
	{vectorsName, "/v1/rerank", `{"model":"tiny-vectors","query":"round %d","documents":["red","green and blue"]}`},
	{vectorsName, "/v1/score", `{"model":"tiny-vectors","text_1":"round %d","text_2":["red","blue"]}`},
	{vectorsName, "/pooling", `{"model":"tiny-vectors","input":"round %d"}`},
	{vectorsName, "/tokenize", `{"model":"tiny-vectors","prompt":"round %d"}`},
}

// generated are requests for the chat model.
var generated = []sideBySide{
	{modelName, chats, `{"model":"tiny","messages":[{"role":"user","content":"round %d"}],"max_tokens":4}`},
	{modelName, completions, `{"model":"tiny","prompt":"round %d","max_tokens":4}`},
	{modelName, responses, `{"model":"tiny","input":"round %d","max_output_tokens":16}`},
	{modelName, messages, `{"model":"tiny","messages":[{"role":"user","content":"round %d"}],"max_tokens":4}`},
	{modelName, "/tokenize", `{"model":"tiny","prompt":"round %d"}`},
}

// mistaken are requests for the wrong one of the two models.
var mistaken = []sideBySide{
	{modelName, "/v1/embeddings", `{"model":"tiny","input":"hi"}`},
	{modelName, "/v1/rerank", `{"model":"tiny","query":"hi","documents":["a","b"]}`},
	{modelName, "/v1/score", `{"model":"tiny","text_1":"a","text_2":"b"}`},
	{vectorsName, chats, `{"model":"tiny-vectors","messages":[{"role":"user","content":"hi"}]}`},
	{vectorsName, completions, `{"model":"tiny-vectors","prompt":"hi"}`},
	{vectorsName, responses, `{"model":"tiny-vectors","input":"hi"}`},
}

// absent are requests for a model that is not there.
var absent = []sideBySide{
	{"absent", "/v1/embeddings", `{"model":"absent","input":"hi"}`},
	{"absent", "/v1/rerank", `{"model":"absent","query":"hi","documents":["a","b"]}`},
	{"absent", chats, `{"model":"absent","messages":[{"role":"user","content":"hi"}]}`},
}

// modelCase has the results of the requests for one model and path.
type modelCase struct {
	model, path string
	requests    int
	picks       map[string]int
	equal       int // answers that are equal to the engine's own; of the embedding model only
}

// right counts the requests that were sent to an engine of their model.
func (c *modelCase) right() int {
	if c.model == vectorsName {
		return c.picks[poolingName]
	}
	return c.requests - c.picks[poolingName]
}

// startPoolingEngine starts an engine for the embedding model. It publishes no events, and has no prefix cache.
func (b *bench) startPoolingEngine() (*engine, error) {
	port, err := loopback.Port()
	if err != nil {
		return nil, err
	}
	e := &engine{
		name: poolingName, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		log: filepath.Join(b.folder, poolingName+".log"), program: b.vllm,
	}
	e.args = []string{
		"serve", b.vectors, "--served-model-name", vectorsName, "--runner", "pooling", "--host", "127.0.0.1", "--port", strconv.Itoa(port),
		"--max-num-seqs", "16", "--enforce-eager", "--block-size", strconv.Itoa(blockSize), "--kv-cache-memory-bytes", "16777216",
		"--disable-uvicorn-access-log",
	}
	return e, e.start()
}

// modelRequest is one request of a case.
type modelRequest struct {
	*modelCase
	body string
	id   string // of the gateway's decision
}

// modelRequests returns the requests for both models, in each round in another order, and their cases.
func modelRequests(seed uint64) (list []modelRequest, all []*modelCase) {
	kinds := append(append([]sideBySide(nil), generated...), pooled...)
	cases := map[[2]string]*modelCase{}
	for _, k := range kinds {
		if at := [2]string{k.model, k.path}; cases[at] == nil {
			cases[at] = &modelCase{model: k.model, path: k.path, picks: map[string]int{}}
			all = append(all, cases[at])
		}
	}

	rng := rand.New(rand.NewPCG(seed, 8))
	for round := range modelRounds {
		for _, i := range rng.Perm(len(kinds)) {
			k := kinds[i]
			list = append(list, modelRequest{modelCase: cases[[2]string{k.model, k.path}], body: fmt.Sprintf(k.body, 10+round)})
		}
	}
	return list, all
}

// runModels sends requests for both models one after another, and compares the answers of the embedding model with its
// engine's own.
func runModels(ctx context.Context, b *bench, g *gateway, pooling *engine) ([]*modelCase, error) {
	list, all := modelRequests(b.seed)
	var ids []string
	for i := range list {
		q := &list[i]
		r, err := postGood(ctx, g.URL+q.path, q.body)
		if err != nil {
			return nil, err
		}
		q.id = r.decision
		ids = append(ids, q.id)
		if q.model != vectorsName {
			continue
		}
		own, err := postGood(ctx, "http://"+pooling.address+q.path, q.body)
		if err != nil {
			return nil, err
		}
		if sameAnswer(r.body, own.body) {
			q.equal++
		}
	}

	decisions, err := g.decided(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, q := range list {
		q.requests++
		q.picks[decisions[q.id].Worker]++
	}
	return all, nil
}

// sameAnswer compares two JSON answers but for what differs each time: their id and when they were made.
func sameAnswer(one, other string) bool {
	var a, b map[string]any
	if json.Unmarshal([]byte(one), &a) != nil || json.Unmarshal([]byte(other), &b) != nil {
		return false
	}
	for _, name := range []string{"id", "created"} {
		delete(a, name)
		delete(b, name)
	}
	return len(a) > 0 && reflect.DeepEqual(a, b)
}

// refusedCase is the answers to a request that names a model that cannot answer it.
type refusedCase struct {
	sideBySide
	engine, gateway reply // without an engine if the model is not there
}

// runMistakes sends requests that name the wrong model or none that is there.
func runMistakes(ctx context.Context, g *gateway, chat, pooling *engine) (wrong, gone []refusedCase, err error) {
	for _, k := range mistaken {
		e := chat
		if k.model == vectorsName {
			e = pooling
		}
		c := refusedCase{sideBySide: k}
		c.engine, err = post(ctx, "http://"+e.address+k.path, k.body)
		if err != nil {
			return nil, nil, err
		}
		c.gateway, err = post(ctx, g.URL+k.path, k.body)
		if err != nil {
			return nil, nil, err
		}
		wrong = append(wrong, c)
	}

	for _, k := range absent {
		c := refusedCase{sideBySide: k}
		c.gateway, err = post(ctx, g.URL+k.path, k.body)
		if err != nil {
			return nil, nil, err
		}
		gone = append(gone, c)
	}
	return wrong, gone, nil
}

func modelsSection(ctx context.Context, b *bench, engines []*engine, p *page) error {
	pooling, err := b.startPoolingEngine()
	if err != nil {
		return err
	}
	defer pooling.stop()
	b.progressf("wait for engine %s with the embedding model", pooling.name)
	if err := pooling.await(ctx); err != nil {
		return err
	}

	cfg := b.gatewayConfig("")
	cfg.more = fmt.Sprintf("{name: %s, workers: [{name: %s, address: %q}]}", vectorsName, poolingName, pooling.address)
	g, err := b.startGatewayWith(ctx, cfg, engines)
	if err != nil {
		return err
	}
	defer g.Stop()

	all, err := runModels(ctx, b, g, pooling)
	if err != nil {
		return err
	}
	wrong, gone, err := runMistakes(ctx, g, engines[0], pooling)
	if err != nil {
		return err
	}
	libraries, err := runScript(ctx, b.clientsPython, "vectors.py", g.URL, "http://"+pooling.address, modelName, vectorsName)
	if err != nil {
		return err
	}
	printModels(p, all, wrong, gone, libraries)
	return nil
}

// printModels writes the section of the report.
func printModels(p *page, all []*modelCase, wrong, gone []refusedCase, libraries []clientCase) {
	p.section("A chat model and an embedding model")
	p.text("Engines a and b serve %s, and engine %s serves %s: a model of BERT's kind with a WordPiece vocabulary, by "+
		"`vllm serve --runner pooling`. It is configured without a path, so its prompts are not read. %d rounds of all requests, in a "+
		"random order. \"Equal\" are answers with the same vectors, scores and token counts that the engine itself gives.",
		modelName, poolingName, vectorsName, modelRounds)
	p.writeRow("model", "path", "requests", "to a", "to b", "to "+poolingName, "equal")
	requests, right := 0, 0
	differ := false
	for _, c := range all {
		same := any("")
		if c.model == vectorsName {
			same = c.equal
			differ = differ || c.equal < c.requests
		}
		p.writeRow(c.model, "`"+c.path+"`", c.requests, c.picks["a"], c.picks["b"], c.picks[poolingName], same)
		requests += c.requests
		right += c.right()
	}
	p.endTable()

	p.text("Requests for the wrong model get the answer of its engine, and those for a model that is not there get the gateway's.")
	p.writeRow("model", "path", "engine", "gateway", "the client gets")
	passed := 0
	for _, c := range wrong {
		p.writeRow(c.model, "`"+c.path+"`", c.engine.status, c.gateway.status, "`"+c.gateway.body+"`")
		if c.gateway.status >= http.StatusBadRequest && c.gateway.status == c.engine.status && c.gateway.body == c.engine.body {
			passed++
		}
	}
	refused := 0
	for _, c := range gone {
		p.writeRow(c.model, "`"+c.path+"`", "", c.gateway.status, "`"+c.gateway.code()+"`")
		if c.gateway.status == http.StatusNotFound && c.gateway.code() == "model_not_found" {
			refused++
		}
	}
	p.endTable()

	good := p.cases(libraries)
	p.bar("requests for each model go to its engines", right == requests)
	p.bar("vectors and scores are equal to the engine's", !differ)
	p.bar("requests for the wrong model get the engine's answer", passed == len(wrong))
	p.bar("requests for a model that is not there get 404 from the gateway", refused == len(gone))
	p.bar("vectors that the clients' libraries read are equal to the engine's", len(libraries) > 0 && good == len(libraries))
}
