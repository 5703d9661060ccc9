// Package streams sends requests as a client does, and reads streamed answers to their ends.
package streams

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Answer has the times and the usage of an answer, as a client received it.
type Answer struct {
	First, Whole           time.Duration // until the first event and until the end
	Prompt, Cached, Tokens int           // the usage: tokens of the prompt, cached tokens among them, and tokens of the answer
	Decision               string        // the id of the router's decision; empty if no router decided
}

// Send posts a body that asks for a stream with its usage, and reads the answer. An answer with another status than 200 is an error.
func Send(ctx context.Context, client *http.Client, url string, body []byte) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")

	begun := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return Answer{Decision: resp.Header.Get("x-stator-decision")}, fmt.Errorf("%s: %s", resp.Status, text)
	}
	a, err := readEvents(resp.Body, begun)
	a.Decision = resp.Header.Get("x-stator-decision")
	return a, err
}

// readEvents reads the events of an answer. A stream that ends early is an error, and one that ends with an event that says so, another.
func readEvents(body io.Reader, begun time.Time) (a Answer, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	ended := false
	for lines.Scan() {
		event, found := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !found {
			continue
		}
		if a.First == 0 {
			a.First = time.Since(begun)
		}
		if bytes.HasPrefix(event, []byte(`{"error":`)) {
			return a, fmt.Errorf("the stream ended with an error: %.300s", event)
		}
		ended = string(event) == "[DONE]"
		if !bytes.Contains(event, []byte(`"usage":{`)) {
			continue
		}
		if err := a.readUsage(event); err != nil {
			return a, err
		}
	}

	if err := lines.Err(); err != nil {
		return a, fmt.Errorf("read a stream: %w", err)
	}
	if !ended {
		return a, errors.New("the stream ended before [DONE]")
	}
	a.Whole = time.Since(begun)
	return a, nil
}

func (a *Answer) readUsage(event []byte) error {
	var last struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Answer  int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(event, &last); err != nil {
		return fmt.Errorf("read the usage of a stream: %w", err)
	}
	a.Prompt = last.Usage.Prompt
	a.Cached = last.Usage.Details.Cached
	a.Tokens = last.Usage.Answer
	return nil
}
