package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/test/process"
)

// worstClients is the number of the worst bodies that are sent at once.
const worstClients = 48

// worstShapes are bodies that cost a router the most memory for their bytes.
var worstShapes = []struct{ name, before, element, after string }{
	{"numbers in the template's arguments", `{"model":"sim","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":[`,
		`0,`, `0]}}`},
	{"escapes in a message", `{"model":"sim","messages":[{"role":"user","content":"`, `\u0061`, `"}]}`},
	{"one long word", `{"model":"sim","messages":[{"role":"user","content":"`, `a`, `"}]}`},
	{"empty messages", `{"model":"sim","messages":[`, `{"role":"user","content":""},`, `{"role":"user","content":""}]}`},
	{"an image", `{"model":"sim","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`, `A`, `"}}]}]}`},
}

// worstBodies sends each shape from many clients at once, and compares the router's peak with the sum of the bodies.
func (s *stack) worstBodies(ctx context.Context, out io.Writer) (failed int, err error) {
	fmt.Fprintf(out, "\n%d of the worst bodies at once: the router's peak may be twice their sum and 100 MB\n", worstClients)
	for _, shape := range worstShapes {
		n := (maxBody - len(shape.before) - len(shape.after)) / len(shape.element)
		body := []byte(shape.before + strings.Repeat(shape.element, n) + shape.after)
		peak, statuses, err := s.peak(ctx, body)
		if err != nil {
			return failed, err
		}
		sum := int64(worstClients * len(body))
		verdict := "met"
		if peak > 2*sum+100<<20 {
			verdict = "missed"
			failed++
		}
		fmt.Fprintf(out, "  %-38s %5.0f MB of bodies, peak %5.0f MB, %s; statuses %v\n",
			shape.name, megabytes(sum), megabytes(peak), verdict, statuses)
	}
	return failed, nil
}

// peak posts the body from all clients at once and returns the largest RSS of the router meanwhile.
func (s *stack) peak(ctx context.Context, body []byte) (peak int64, statuses map[int]int, err error) {
	var clients sync.WaitGroup
	var mu sync.Mutex
	statuses = map[int]int{}
	for range worstClients {
		clients.Go(func() {
			status := s.status(ctx, body)
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		clients.Wait()
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := process.Resident(s.router)
		if err != nil {
			<-done
			return 0, nil, err
		}
		peak = max(peak, now)
		select {
		case <-done:
			return peak, statuses, nil
		case <-tick.C:
		}
	}
}

// status posts a chat and returns the status of the answer; 0 for none.
func (s *stack) status(ctx context.Context, body []byte) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.gateway+chatPath, bytes.NewReader(body))
	if err != nil {
		return 0
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, mostAnswer))
	return resp.StatusCode
}
