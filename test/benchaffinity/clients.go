package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A conversation: the turns, the longest pause of its user between two of them, and the tokens of an answer.
const (
	turns     = 8
	pause     = 2 * time.Second
	maxTokens = 16
)

// clients hold conversations, one after another.
type clients struct {
	http   *http.Client
	url    string
	ledger *ledger
	stop   func() // ends them, and waits
}

// startClients starts so many clients. They send no session header.
func startClients(ctx context.Context, url string, n int, l *ledger) *clients {
	ctx, cancel := context.WithCancel(ctx)
	c := &clients{url: url, ledger: l, http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: n}}}
	var all sync.WaitGroup
	for client := range n {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 1))
			for number := 0; ctx.Err() == nil; number++ {
				c.converse(ctx, random, fmt.Sprintf("town %d, chapter %d", client, number))
			}
		})
	}
	c.stop = func() {
		cancel()
		all.Wait()
		c.http.CloseIdleConnections()
	}
	return c
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// converse holds one conversation. All of them have the first sentences of their instructions in common.
func (c *clients) converse(ctx context.Context, random *rand.Rand, topic string) {
	messages := []message{{"system", "You are an archivist. You answer from your records alone. Your records are those of " + topic + ". " +
		strings.Repeat("You quote the records of "+topic+" word for word. ", 40)}}
	for turn := range turns {
		messages = append(messages, message{"user", fmt.Sprintf("What do the records of %s say of the year %d?", topic, 1900+turn)})
		answer, ok := c.send(ctx, messages)
		if !ok {
			return
		}
		messages = append(messages, message{"assistant", answer})

		select {
		case <-time.After(time.Duration(random.Int64N(int64(pause)))):
		case <-ctx.Done():
			return
		}
	}
}

// send sends a chat, and counts it. A request that is ended with its client is not counted.
func (c *clients) send(ctx context.Context, messages []message) (answer string, ok bool) {
	phase := c.ledger.now()
	t := tally{requests: 1}
	answer, err := c.post(ctx, messages, &t)
	if ctx.Err() != nil {
		return "", false
	}
	if err != nil {
		t.failed = 1
	}
	c.ledger.count(phase, t)
	return answer, err == nil
}

// post sends a chat, and reads the answer and the numbers of tokens.
func (c *clients) post(ctx context.Context, messages []message, t *tally) (answer string, err error) {
	body, err := json.Marshal(map[string]any{"model": "sim", "max_tokens": maxTokens, "messages": messages})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}

	var v struct {
		Choices []struct{ Message message }
		Usage   struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil || resp.StatusCode != http.StatusOK || len(v.Choices) == 0 {
		return "", fmt.Errorf("%s: %.200s", resp.Status, raw)
	}
	t.prompt = v.Usage.Prompt
	t.cached = v.Usage.Details.Cached
	return v.Choices[0].Message.Content, nil
}
