package engineprobe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/stator-project/stator/internal/fleet"
)

// maxAnswer bounds the bytes of an answer that are read.
const maxAnswer = 1 << 20

// list is an engine's answer.
type list struct {
	Data []struct {
		MaxModelLen int `json:"max_model_len"`
	} `json:"data"`
}

// MaxModelLen returns the max_model_len of the first model of the engine at base (http://host:port): the most tokens
// of a prompt and its answer. The first is the base model; the adapters after it have none of their own. 0 without an
// error means that the engine does not report it. The context and the client bound the time.
func MaxModelLen(ctx context.Context, client *http.Client, base string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/models", nil)
	if err != nil {
		return 0, fmt.Errorf("list models: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("list models: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()

	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("list models: status %d", resp.StatusCode)
	}
	// Only a connection whose body was read to its end is used again, so the body is read as a whole.
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, fmt.Errorf("list models: %w", err)
	}

	var answer list
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("list models: %w", err)
	}
	if len(answer.Data) == 0 {
		return 0, nil
	}
	length := answer.Data[0].MaxModelLen
	if length < 0 || length > fleet.MaxContext {
		return 0, fmt.Errorf("list models: max_model_len is %d: it must lie between 0 and %d", length, fleet.MaxContext)
	}
	return length, nil
}
