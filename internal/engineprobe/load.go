package engineprobe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/engines"
)

// LoadsAdapters reports whether LoadAdapter can have engines of that kind load LoRA adapters.
func LoadsAdapters(kind string) bool { return engines.Of(kind).AdapterPath != "" }

// maxRefusal bounds the bytes of an engine's error that are repeated.
const maxRefusal = 512

// LoadAdapter has the engine at address (ip:port) load a LoRA adapter, and returns when it has. path is a folder or a
// repository, as the engine sees it. An engine that has loaded an adapter of that name is no error. The context and the
// client bound the time.
func LoadAdapter(ctx context.Context, client *http.Client, kind, address, name, path string) error {
	body, err := json.Marshal(map[string]string{"lora_name": name, "lora_path": path})
	if err != nil {
		return fmt.Errorf("load adapter: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+engines.Of(kind).AdapterPath, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("load adapter: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("load adapter: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()

	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	text := string(answer)
	switch {
	case resp.StatusCode == http.StatusOK && err == nil:
		return nil
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(text, "already been loaded"):
		return nil // another router was faster
	}
	return fmt.Errorf("load adapter: status %d: %s", resp.StatusCode, strconv.Quote(text))
}
