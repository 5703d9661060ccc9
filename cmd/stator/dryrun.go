package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/modelfile"
)

// dryRun has the flags of stator explain for a request that no client has sent.
type dryRun struct {
	wanted, send                       bool
	file, model, path, tenant, gateway string
}

func (d *dryRun) addFlags(f *cli.Flags) {
	f.BoolVar(&d.wanted, "dry-run", false, "print the decision that the request in -f would get now")
	f.StringVar(&d.file, "f", "", "`file` with the body of the request; - is the standard input")
	f.StringVar(&d.model, "model", "", "`name` of a model, instead of the one in the body")
	f.StringVar(&d.path, "path", "/v1/chat/completions", "`path` of the request")
	f.StringVar(&d.tenant, "tenant", "", "`name` of the client's tenant")
	f.BoolVar(&d.send, "send", false, "with --dry-run: send the request, too")
	f.StringVar(&d.gateway, "gateway", "http://127.0.0.1:8080", "`url` of the gateway, for --send")
}

// maxDryBody bounds the body of a request in bytes, and dryWithin the time of each call.
const (
	maxDryBody = 32 << 20
	dryWithin  = 10 * time.Minute
)

// run asks a router for the decision, and sends the request if that is wanted.
func (d *dryRun) run(ctx context.Context, f *cli.Flags, env environment, router adminclient.Config, words []string, asJSON bool) error {
	if len(words) > 0 || d.file == "" {
		return f.UsageError("--dry-run needs -f FILE with the body of a request, and no ID")
	}
	body, err := d.body(env.in)
	if err != nil {
		return err
	}

	query := url.Values{"path": {d.path}, "tenant": {d.tenant}}
	if asJSON {
		query.Set("format", "json")
	}
	text, err := adminCall{
		method: http.MethodPost, path: "/dry-run?" + query.Encode(), body: body, timeout: dryWithin, most: 16 << 20, part: "a router",
	}.send(ctx, router)
	if err != nil {
		return err
	}
	fmt.Fprint(env.out, string(text))
	if !d.send {
		return nil
	}
	return d.sendIt(ctx, env, router, body)
}

// body reads the request. Its model is replaced if that is wanted, and with --send it does not stream, because the answer has the usage.
func (d *dryRun) body(in io.Reader) (json.RawMessage, error) {
	body, err := readInput(in, d.file, maxDryBody)
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, fmt.Errorf("read the request in %s: %w", d.file, err)
	}
	if d.model == "" && !d.send {
		return body, nil
	}

	if d.model != "" {
		members["model"], err = json.Marshal(d.model)
	}
	if d.send {
		delete(members, "stream")
		delete(members, "stream_options")
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(members)
}

// served is the use of a prompt in the answers of all APIs.
type served struct {
	Usage struct {
		Prompt  int `json:"prompt_tokens"`
		Input   int `json:"input_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		InputDetails struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		Read int `json:"cache_read_input_tokens"`
	} `json:"usage"`
}

// sendIt sends the request, and prints the promised and the found tokens.
func (d *dryRun) sendIt(ctx context.Context, env environment, router adminclient.Config, body []byte) error {
	ctx, stop := context.WithTimeout(ctx, dryWithin)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(d.gateway, "/")+d.path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("--gateway: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("send the request: %w; is %s the gateway's address?", err, d.gateway)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxDryBody))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway answered %s: %.500s", resp.Status, answer)
	}

	id := resp.Header.Get("x-stator-decision")
	page, err := fetchPage(ctx, router, "/debug/decisions/"+url.PathEscape(id)+"?format=json")
	if err != nil {
		return err
	}
	var made struct {
		Worker string `json:"worker"`
		Prompt int    `json:"prompt_tokens"`
		Cached int    `json:"cached_tokens"`
	}
	var use served
	if err := json.Unmarshal([]byte(page), &made); err != nil {
		return fmt.Errorf("read decision %s: %w", id, err)
	}
	if err := json.Unmarshal(answer, &use); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	u := &use.Usage
	fmt.Fprintf(env.out, "\nsent to %s as %s: %d of %d prompt tokens promised as cached, %d of %d found by the engine\n", made.Worker, id,
		made.Cached, made.Prompt, u.Details.Cached+u.InputDetails.Cached+u.Read, u.Prompt+u.Input+u.Read)
	return nil
}

// readInput reads a file of at most so many bytes, or the standard input if its name is "-".
func readInput(in io.Reader, file string, most int64) ([]byte, error) {
	if file != "-" {
		return modelfile.ReadBounded(file, most)
	}
	data, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("the standard input is larger than %d MB", most>>20)
	}
	return data, err
}
