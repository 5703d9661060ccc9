package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// counts are the counters of a witness since its process began.
type counts map[string]float64

func (c counts) since(before counts) counts {
	out := counts{}
	for k, v := range c {
		out[k] = v - before[k]
	}
	return out
}

// witness counts how requests were really served.
type witness interface {
	// read asks the ext_proc process.
	read(ctx context.Context) (counts, error)
	// prove is nil when these are the counts of exactly n requests, treated as they should be.
	prove(seen counts, n int) error
}

// ourWitness reads the metrics of `stator extproc`, which receives Envoy's access log.
type ourWitness struct{ admin string }

// The counts of ourWitness: how requests were served, and blocks of their prompts.
const (
	asPicked  = "as_picked"
	promptKey = "prompt_blocks"
	reusedKey = "overlap_blocks"
)

// otherOutcomes are those that no request may have.
var otherOutcomes = []string{"retried", "misdirected", "unpicked", "unserved", "answered"}

func (w ourWitness) read(ctx context.Context) (counts, error) {
	text, err := getPage(ctx, "http://"+w.admin+"/metrics")
	if err != nil {
		return nil, err
	}

	c := counts{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch name {
		case "stator_route_prompt_blocks_total":
			c[promptKey] = v
		case "stator_route_overlap_blocks_total":
			c[reusedKey] = v
		default:
			if outcome, ok := strings.CutPrefix(name, `stator_accesslog_requests_total{outcome="`); ok {
				c[strings.TrimSuffix(outcome, `"}`)] = v
			}
			if outcome, ok := strings.CutPrefix(name, `stator_extproc_prefills_total{outcome="`); ok {
				c[prefillKey(strings.TrimSuffix(outcome, `"}`))] = v
			}
		}
	}

	return c, nil
}

func (ourWitness) prove(seen counts, n int) error {
	if seen[asPicked] != float64(n) {
		return fmt.Errorf("%g of %d requests were served as picked", seen[asPicked], n)
	}
	for _, bad := range otherOutcomes {
		if seen[bad] != 0 {
			return fmt.Errorf("%g of %d requests were %s", seen[bad], n, bad)
		}
	}
	return nil
}

// emptyWitness asks the empty handler.
type emptyWitness struct{ admin string }

func (w emptyWitness) read(ctx context.Context) (counts, error) {
	text, err := getPage(ctx, "http://"+w.admin+"/counts")
	if err != nil {
		return nil, err
	}
	c := counts{}
	return c, json.Unmarshal(text, &c)
}

func (emptyWitness) prove(seen counts, n int) error {
	for _, what := range []string{"headers", "bodies", "entries"} {
		if seen[what] != float64(n) {
			return fmt.Errorf("the empty handler saw %g %s of %d requests", seen[what], what, n)
		}
	}
	return nil
}

// plainWitness is the witness of set-ups without ext_proc.
type plainWitness struct{}

func (plainWitness) read(context.Context) (counts, error) { return counts{}, nil }
func (plainWitness) prove(counts, int) error              { return nil }

func getPage(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}

	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}
