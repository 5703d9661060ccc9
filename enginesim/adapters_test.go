package enginesim_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stator-project/stator/enginesim"
)

// TestAdaptersAreLoadedAndUnloaded: the answers and the statuses are the same as vLLM's. An adapter that is loaded again
// finds its blocks.
func TestAdaptersAreLoadedAndUnloaded(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.LoadAdapters, c.Adapters = true, []string{"poet"} })
	load := func(name, path string) string { return fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, path) }
	const ask = `{"model":"lawyer","prompt":"A prompt of a few blocks","max_tokens":1}`
	dir := t.TempDir()

	for _, c := range []struct {
		path, body string
		status     int
		answer     string
	}{
		{"/v1/completions", ask, http.StatusNotFound, "The model `lawyer` does not exist."},
		{"/v1/load_lora_adapter", load("lawyer", dir+"/missing"), http.StatusNotFound, "No adapter found"},
		{"/v1/load_lora_adapter", load("", dir), http.StatusBadRequest, "lora_name"},
		{"/v1/load_lora_adapter", load("lawyer", dir), http.StatusOK, "Success: LoRA adapter 'lawyer' added successfully."},
		{"/v1/load_lora_adapter", load("lawyer", dir), http.StatusBadRequest, "already been loaded"},
		{"/v1/completions", ask, http.StatusOK, `"cached_tokens":0`},
		{"/v1/unload_lora_adapter", load("lawyer", ""), http.StatusOK, "removed"},
		{"/v1/unload_lora_adapter", load("lawyer", ""), http.StatusNotFound, "cannot be found"},
		{"/v1/completions", ask, http.StatusNotFound, "does not exist"},
		{"/v1/load_lora_adapter", load("lawyer", dir), http.StatusOK, "Success"},
		{"/v1/completions", ask, http.StatusOK, `"cached_tokens":20`},
	} {
		if status, answer := r.post(c.path, c.body); status != c.status || !strings.Contains(answer, c.answer) {
			t.Errorf("%s %s: %d %s; want %d %s", c.path, c.body, status, answer, c.status, c.answer)
		}
	}
	if _, list := r.get("/v1/models"); !strings.Contains(list, `"id":"lawyer"`) || !strings.Contains(list, `"id":"poet"`) {
		t.Errorf("models %s", list)
	}
}

// TestAdaptersAreFixed: without the option there are no paths to change adapters, as in vLLM.
func TestAdaptersAreFixed(t *testing.T) {
	r := start(t, func(c *enginesim.Config) { c.Adapters = []string{"poet"} })
	for _, path := range []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} {
		if status, answer := r.post(path, `{"lora_name":"poet"}`); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
}
