package engineprobe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/fleet"
)

// Answer is an engine's reaction to a question for its health.
type Answer uint8

const (
	// Healthy engines have answered. Some have no page for their health, and answer that.
	Healthy Answer = iota
	// Refusing engines have answered with a server error, as while they load, or nothing listens at their address.
	Refusing
	// Silent engines have not answered in time. The network between may be the cause.
	Silent
)

// Answers is the number of answers.
const Answers = 3

var answerNames = [Answers]string{"healthy", "refusing", "silent"}

func (a Answer) String() string { return answerNames[a] }

// maxHealth bounds the bytes of an answer that are read.
const maxHealth = 64 << 10

// AskHealth asks the engine at ip:port for its health. detail describes the answer in a few words; it is empty for a healthy
// engine that answers with 200. The context and the client bound the time.
func AskHealth(ctx context.Context, client *http.Client, address, path string) (a Answer, detail string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return Refusing, fmt.Sprintf("wrong address: %v", err)
	}

	a, detail, _ = ask(client, req, fleet.IsReadyPath(path))
	return a, detail
}

// AskCompletion asks the engine at ip:port for a completion of one token, which shows that it computes. An engine without completions, or
// one that does not know the model, answers with 400 or 404, and is healthy. One that answers with 200 and without a token generates
// nothing: it is refusing. The context and the client bound the time.
func AskCompletion(ctx context.Context, client *http.Client, address, model string) (a Answer, detail string) {
	return askCompletion(ctx, client, address, model, nil)
}

// AskRank asks one data-parallel rank of the engine as AskCompletion asks the engine.
func AskRank(ctx context.Context, client *http.Client, address, model string, rank int) (a Answer, detail string) {
	return askCompletion(ctx, client, address, model, http.Header{headerRank: {strconv.Itoa(rank)}})
}

// headerRank is the header by which vLLM selects a rank.
var headerRank = http.CanonicalHeaderKey(envoynames.HeaderDataRank)

func askCompletion(ctx context.Context, client *http.Client, address, model string, headers http.Header) (a Answer, detail string) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": "a", "max_tokens": 1, "temperature": 0})
	if err != nil {
		return Refusing, fmt.Sprintf("wrong name of a model: %v", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+completions, bytes.NewReader(body))
	if err != nil {
		return Refusing, fmt.Sprintf("wrong address: %v", err)
	}
	maps.Copy(req.Header, headers)
	req.Header.Set("content-type", "application/json")
	a, detail, answer := ask(client, req, false)
	switch {
	case a == Silent:
		detail = "a completion of one token has " + detail
	case a == Healthy && detail == "" && !hasToken(answer):
		return Refusing, completions + " answers 200 without a token"
	}
	return a, detail
}

// hasToken reports whether the answer to a completion has a choice, and by its usage, if it has one, a token. The text may be empty: the
// token may end the answer. An answer that was not read to its end has some text.
func hasToken(answer []byte) bool {
	var c struct {
		Choices []struct{}
		Usage   struct {
			Tokens *float64 `json:"completion_tokens"`
		}
	}
	if len(answer) == maxHealth {
		return true
	}
	isRead := json.Unmarshal(answer, &c) == nil
	return isRead && len(c.Choices) > 0 && (c.Usage.Tokens == nil || *c.Usage.Tokens > 0)
}

// completions is the path of OpenAI's completions.
const completions = "/v1/completions"

// ask sends a question, and returns the answer's body, too. needsPage means that an answer of 404 is one of a dead engine.
func ask(client *http.Client, req *http.Request, needsPage bool) (a Answer, detail string, body []byte) {
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refusing, "connection refused", nil
	case errors.Is(err, syscall.ECONNRESET): // by the engine, or by a network that loses connections
		return Silent, "connection reset", nil
	case err != nil:
		return Silent, silence(err), nil
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxHealth)) // only then a connection is used again
	_ = resp.Body.Close()

	path := req.URL.EscapedPath()
	switch {
	case resp.StatusCode >= http.StatusInternalServerError, resp.StatusCode == http.StatusNotFound && needsPage:
		return Refusing, fmt.Sprintf("%s answers %d", path, resp.StatusCode), nil
	case err != nil:
		return Silent, silence(err), nil
	case resp.StatusCode != http.StatusOK:
		return Healthy, fmt.Sprintf("%s answers %d", path, resp.StatusCode), nil
	}
	return Healthy, "", body
}

// silence describes an error of an engine that has not answered. The address is left out.
func silence(err error) string {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time"
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Sprintf("no answer: %v", err)
}
