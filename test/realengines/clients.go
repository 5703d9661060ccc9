package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
)

// clientCase is the result of one call of a client's library.
type clientCase struct {
	Library, What, Problem string
}

// runClients lets clients' libraries send requests. OpenAI's and Anthropic's are in the virtual environment of vLLM. LangChain
// and LiteLLM have one of their own, because they need an older openai.
func runClients(ctx context.Context, b *bench, g *gateway) ([]clientCase, error) {
	cases, err := runScript(ctx, filepath.Join(filepath.Dir(b.vllm), "python"), "clients.py", g.URL, modelName)
	if err != nil {
		return nil, err
	}
	more, err := runScript(ctx, b.clientsPython, "frameworks.py", g.URL, modelName)
	return append(cases, more...), err
}

// runScript runs a Python script of this folder that prints a line for each case.
func runScript(ctx context.Context, python, script string, args ...string) ([]clientCase, error) {
	args = append([]string{"-B", filepath.Join("test/realengines", script)}, args...)
	out, err := exec.CommandContext(ctx, python, args...).Output()
	if err != nil {
		failed := new(exec.ExitError)
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w\n%s", err, lastPart(failed.Stderr))
		}
		return nil, fmt.Errorf("%s: %w", script, err)
	}

	var cases []clientCase
	lines := json.NewDecoder(bytes.NewReader(out))
	for {
		var c clientCase
		err := lines.Decode(&c)
		if errors.Is(err, io.EOF) {
			return cases, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read what %s prints: %w", script, err)
		}
		cases = append(cases, c)
	}
}

// passed are further paths of engines, with requests that they answer or refuse themselves.
var passed = []struct{ path, body string }{
	{responses, `{"model":"tiny","input":"hi","max_output_tokens":16}`},
	{messages, `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":4}`},
	{"/v1/messages/count_tokens", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`},
	{"/v1/embeddings", `{"model":"tiny","input":"hi"}`},
	{"/v1/rerank", `{"model":"tiny","query":"hi","documents":["a","b"]}`},
	{"/v1/score", `{"model":"tiny","text_1":"a","text_2":"b"}`},
}

// closed are paths of an engine that change it, stop it or show its state.
var closed = []string{
	"/reset_prefix_cache", "/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
	"/metrics", "/docs", "/version", "/server_info",
}

// pathCase is the answers to one request by an engine and by the gateway in front of it.
type pathCase struct {
	path            string
	engine, gateway int
}

// runPaths sends requests to an engine and through the gateway.
func runPaths(ctx context.Context, g *gateway, e *engine) (pass, shut []pathCase, err error) {
	for _, p := range passed {
		c := pathCase{path: p.path}
		c.engine, err = statusOf(ctx, "http://"+e.address+p.path, p.body)
		if err != nil {
			return nil, nil, err
		}
		c.gateway, err = statusOf(ctx, g.URL+p.path, p.body)
		if err != nil {
			return nil, nil, err
		}
		pass = append(pass, c)
	}
	for _, path := range closed {
		c := pathCase{path: path}
		c.gateway, err = statusOf(ctx, g.URL+path, `{"model":"tiny"}`)
		if err != nil {
			return nil, nil, err
		}
		shut = append(shut, c)
	}
	return pass, shut, nil
}

// reply is an answer to a request that was posted as it is.
type reply struct {
	status   int
	decision string // the id of the gateway's decision
	body     string
}

// code returns the code of an error in OpenAI's format.
func (r *reply) code() string {
	var body struct {
		Error struct {
			Code any `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		return ""
	}
	return fmt.Sprint(body.Error.Code)
}

// post posts a JSON body.
func post(ctx context.Context, url, body string) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	return reply{resp.StatusCode, resp.Header.Get("X-Stator-Decision"), string(text)}, err
}

// postGood is post for a request that must be answered well.
func postGood(ctx context.Context, url, body string) (reply, error) {
	r, err := post(ctx, url, body)
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %.300s", url, r.status, r.body)
	}
	return r, err
}

// statusOf posts a body and returns the status of the answer.
func statusOf(ctx context.Context, url, body string) (int, error) {
	r, err := post(ctx, url, body)
	return r.status, err
}

func clientsSection(ctx context.Context, b *bench, engines []*engine, p *page) error {
	g, err := b.startGateway(ctx, engines, "")
	if err != nil {
		return err
	}
	defer g.Stop()
	cases, err := runClients(ctx, b, g)
	if err != nil {
		return err
	}
	pass, shut, err := runPaths(ctx, g, engines[0])
	if err != nil {
		return err
	}
	printClients(p, cases, pass, shut)
	return nil
}

// cases writes a table of cases, and returns how many of them are good.
func (p *page) cases(list []clientCase) (good int) {
	p.writeRow("library", "what", "result")
	for _, c := range list {
		if c.Problem == "" {
			good++
			c.Problem = "as it should be"
		}
		p.writeRow(c.Library, c.What, c.Problem)
	}
	p.endTable()
	return good
}

// printClients writes the section of the report.
func printClients(p *page, cases []clientCase, pass, shut []pathCase) {
	p.section("Clients and other paths")
	p.text("Requests of the clients' libraries through the gateway. Only their address was changed.")
	good := p.cases(cases)

	p.text("Further paths. The engine answers with the same status itself.")
	p.writeRow("path", "engine", "gateway")
	same := 0
	for _, c := range pass {
		p.writeRow("`"+c.path+"`", c.engine, c.gateway)
		if c.engine == c.gateway {
			same++
		}
	}
	p.endTable()

	var open []string
	for _, c := range shut {
		if c.gateway != http.StatusNotFound {
			open = append(open, fmt.Sprintf("%s (%d)", c.path, c.gateway))
		}
	}
	p.text("%d paths by which an engine is changed, stopped or inspected were tried too: %s.", len(shut), strings.Join(closed, ", "))
	p.bar("all cases of the clients' libraries are as they should be", len(cases) > 0 && good == len(cases))
	p.bar("paths that pass are answered by the engine", same == len(pass))
	p.bar("paths that do not compute anything get 404 from the gateway", len(open) == 0)
	if len(open) > 0 {
		p.item("These are open: %s.", strings.Join(open, ", "))
	}
}

// lastPart returns the end of a program's output.
func lastPart(out []byte) []byte {
	out = bytes.TrimSpace(out)
	return out[max(0, len(out)-2000):]
}
