package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// classResult sums up the cases of a class.
type classResult struct {
	name             string
	cases, failed    int
	cpu, mostCPU     time.Duration
	bytes, mostBytes int64
}

// play plays all cases, one after the other.
func (s *stack) play(ctx context.Context, classes []class, o *options, out io.Writer) ([]classResult, error) {
	var results []classResult
	for _, c := range classes {
		r := classResult{name: c.name}
		for i := range c.cases {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			spent, problem := s.playCase(ctx, &c.cases[i])
			r.addCase(spent, problem)
			if problem != nil || o.verbose {
				fmt.Fprintf(out, "%s: %s: %v (%.1f ms, %.1f MB)\n", c.name, c.cases[i].name, problem,
					milliseconds(spent.cpu), megabytes(spent.bytes))
			}
		}
		results = append(results, r)
	}
	return results, nil
}

func (r *classResult) addCase(spent used, problem error) {
	r.cases++
	if problem != nil {
		r.failed++
	}
	r.cpu += spent.cpu
	r.bytes += spent.bytes
	r.mostCPU = max(r.mostCPU, spent.cpu)
	r.mostBytes = max(r.mostBytes, spent.bytes)
}

// playCase plays one case, and returns its time and memory, and the expectation that was not met.
func (s *stack) playCase(ctx context.Context, c *testCase) (used, error) {
	if c.call != nil {
		c.bounded(0)
		spent, err := ofCall(c.call)
		switch {
		case c.accepted && err != nil:
			return spent, fmt.Errorf("refused: %w", err)
		case !c.accepted && err == nil:
			return spent, errors.New("accepted, and should be refused")
		}
		return spent, c.within(spent)
	}

	var body []byte
	if c.body != nil {
		body = c.body()
	}
	c.bounded(len(body))
	var got answer
	spent, err := s.ofRouter(ctx, func() (err error) {
		got, err = s.request(ctx, c, body)
		return err
	})
	if err != nil {
		return spent, err
	}
	if problem := c.check(got); problem != nil {
		return spent, problem
	}
	return spent, c.within(spent)
}

// within compares the time and memory of a case with its bounds.
func (c *testCase) within(spent used) error {
	most := c.cpu + time.Duration(spent.wall.Seconds()*float64(cpuOfSecond))
	if spent.cpu > most {
		return fmt.Errorf("spent %.0f ms of CPU, more than %.0f", milliseconds(spent.cpu), milliseconds(most))
	}
	if spent.bytes > c.bytes {
		return fmt.Errorf("allocated %.1f MB, more than %.1f", megabytes(spent.bytes), megabytes(c.bytes))
	}
	return nil
}

// answer is an answer as a client received it. A status of 0 is a connection that was closed without an answer.
type answer struct {
	status int
	body   []byte
	kind   string // content-type
	engine bool   // an engine has made the answer; its errors have its own shape
}

// client never reuses a connection for another case, so that one case cannot disturb the next.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}, Timeout: 30 * time.Second}

// mostAnswer bounds the part of an answer that is read, in bytes.
const mostAnswer = 4 << 20

func (s *stack) request(ctx context.Context, c *testCase, body []byte) (answer, error) {
	if c.send != nil {
		status, text, err := c.send(s.gateway)
		return answer{status: status, body: text, kind: "application/json"}, err
	}

	req, err := http.NewRequestWithContext(ctx, c.method, "http://"+s.gateway, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.URL.Opaque = "//" + s.gateway + c.path // as it is, without normalization
	for i := 0; i+1 < len(c.headers); i += 2 {
		req.Header.Add(c.headers[i], c.headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, nil //nolint:nilerr // the gateway may close a connection; the expectation says whether it may
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	return answer{
		status: resp.StatusCode, body: text, kind: resp.Header.Get("content-type"), engine: resp.Header.Get("x-stator-decision") != "",
	}, err
}

// mostError bounds the body of an error: texts of clients that it repeats are clipped.
const mostError = 2048

// check compares an answer with the expectation. An error must have OpenAI's shape.
func (c *testCase) check(got answer) error {
	if !slices.Contains(c.want, got.status) {
		return fmt.Errorf("status %d, want %v: %s", got.status, c.want, clip(got.body))
	}
	if got.status < 400 || got.engine || c.method == http.MethodHead || got.status == http.StatusExpectationFailed {
		return nil
	}

	var shape struct {
		Error struct {
			Message, Type string
			Param, Code   *string
		}
	}
	if err := json.Unmarshal(got.body, &shape); err != nil {
		return fmt.Errorf("status %d without OpenAI's shape, %w: %s", got.status, err, clip(got.body))
	}
	e := shape.Error
	switch {
	case e.Message == "" || e.Type == "":
		return fmt.Errorf("status %d without a message or type: %s", got.status, clip(got.body))
	case len(got.body) > mostError:
		return fmt.Errorf("the error has %d bytes: %s", len(got.body), clip(got.body))
	case !strings.HasPrefix(got.kind, "application/json"):
		return fmt.Errorf("content-type %q", got.kind)
	}
	param := ""
	if e.Param != nil {
		param = *e.Param
	}
	if c.param != "*" && param != c.param {
		return fmt.Errorf("param %q, want %q: %s", param, c.param, clip(got.body))
	}
	return nil
}

func clip(text []byte) string {
	const most = 300
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}
