package engineprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"

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
const maxHealth = 4 << 10

// AskHealth asks the engine at ip:port for its health. detail describes the answer in a few words; it is empty for a healthy
// engine that answers with 200. The context and the client bound the time.
func AskHealth(ctx context.Context, client *http.Client, address, path string) (a Answer, detail string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return Refusing, fmt.Sprintf("wrong address: %v", err)
	}

	resp, err := client.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refusing, "connection refused"
	case errors.Is(err, syscall.ECONNRESET): // by the engine, or by a network that loses connections
		return Silent, "connection reset"
	case err != nil:
		return Silent, silence(err)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxHealth) // only then a connection is used again
	_ = resp.Body.Close()

	switch {
	case resp.StatusCode >= http.StatusInternalServerError,
		resp.StatusCode == http.StatusNotFound && fleet.IsReadyPath(path):
		return Refusing, fmt.Sprintf("%s answers %d", path, resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return Healthy, fmt.Sprintf("%s answers %d", path, resp.StatusCode)
	}
	return Healthy, ""
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
