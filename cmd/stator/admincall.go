package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
)

// noPage is the answer of an admin port without a page.
const noPage = "404 page not found"

// fetchPage fetches a page of an admin port.
func fetchPage(ctx context.Context, admin adminclient.Config, path string) (string, error) {
	text, err := adminCall{method: http.MethodGet, path: path, timeout: 10 * time.Second, most: 16 << 20, part: "it"}.send(ctx, admin)
	return string(text), err
}

// adminCall is a request to an admin port.
type adminCall struct {
	method, path string
	body         any           // becomes JSON; nil for none
	timeout      time.Duration // of all of it
	most         int64         // bytes of the answer that are read
	part         string        // the process that should serve the port, for an error
}

// send returns the answer. One that is not 200 is the error.
func (c adminCall) send(ctx context.Context, admin adminclient.Config) ([]byte, error) {
	client, err := adminclient.New(admin, c.timeout)
	if err != nil {
		return nil, err
	}
	var body []byte
	if c.body != nil {
		body, err = json.Marshal(c.body)
		if err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, c.method, client.URL(c.path), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", admin.Address, err)
	}
	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := client.HTTP().Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the admin port: %w; is %s running, and is %s its --admin-address?", err, c.part, admin.Address)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, c.most))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", admin.Address, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return text, nil
}
