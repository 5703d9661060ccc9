package enginesim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// adapters are the LoRA adapters that are loaded. They have numbers from 1, as in vLLM, and no number is used again:
// requests with the number of an unloaded adapter may still run.
//
//	request                      adapter     answer   effect
//	/v1/load_lora_adapter        new         200      listed in /v1/models, and served
//	                             loaded      400      -
//	                             no files    404      -
//	/v1/unload_lora_adapter      loaded      200      neither listed nor served
//	                             another     404      -
//	/v1/completions and others   loaded      200      its blocks are found by this adapter alone
//	                             another     404      -
type adapters struct {
	mu    sync.Mutex
	names []string       // guarded by mu; in the order in which they were loaded
	ids   map[string]int // guarded by mu; of all that were ever loaded
}

// maxAdapters bounds how many adapters are ever loaded, and maxAdapterName the bytes of a name: clients choose both.
const (
	maxAdapters    = 1000
	maxAdapterName = 256
)

// newAdapters returns the adapters that are loaded from the beginning.
func newAdapters(names []string) *adapters {
	a := &adapters{ids: map[string]int{}}
	for _, name := range names {
		a.load(name)
	}
	return a
}

// load adds an adapter. It returns false if one of that name is loaded, or there are too many.
func (a *adapters) load(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.findLocked(name) >= 0 || len(a.ids) >= maxAdapters {
		return false
	}
	// An adapter that was unloaded has its number from before, and its blocks.
	if a.ids[name] == 0 {
		a.ids[name] = len(a.ids) + 1
	}
	a.names = append(a.names, name)
	return true
}

// unload removes an adapter. It returns false if there is none of that name.
func (a *adapters) unload(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.findLocked(name)
	if i < 0 {
		return false
	}
	a.names = append(a.names[:i:i], a.names[i+1:]...)
	return true
}

// findLocked returns the position of a loaded adapter, or -1. mu is held.
func (a *adapters) findLocked(name string) int {
	for i, loaded := range a.names {
		if loaded == name {
			return i
		}
	}
	return -1
}

// id returns the number of a loaded adapter, or 0.
func (a *adapters) id(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.findLocked(name) < 0 {
		return 0
	}
	return a.ids[name]
}

// list returns the adapters in the order in which they were loaded.
func (a *adapters) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.names...)
}

// adapterRequest is the body of /v1/load_lora_adapter and of /v1/unload_lora_adapter.
type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

// readAdapterRequest reads the body of a request to load or to unload an adapter.
func (s *Sim) readAdapterRequest(w http.ResponseWriter, r *http.Request) (req adapterRequest, ok bool) {
	body, err := s.readBody(w, r)
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil || req.Name == "" || len(req.Name) > maxAdapterName {
		s.writeError(w, openai.Invalid("lora_name", "", "The body must have the name of an adapter in 'lora_name'."))
		return req, false
	}
	return req, true
}

// loadAdapter serves /v1/load_lora_adapter, as vLLM does with VLLM_ALLOW_RUNTIME_LORA_UPDATING: a path that does not exist
// is 404, and a name that is taken is 400. The files are not read, because the simulator has no weights.
func (s *Sim) loadAdapter(w http.ResponseWriter, r *http.Request) {
	req, ok := s.readAdapterRequest(w, r)
	if !ok {
		return
	}
	// vLLM takes a path for the name of a repository on Hugging Face if there is no such folder, and finds none.
	if _, err := os.Stat(req.Path); err != nil {
		s.writeError(w, &openai.Error{Status: http.StatusNotFound,
			Message: fmt.Sprintf("Loading lora %s failed: No adapter found for %s", req.Name, req.Path)})
		return
	}
	if !s.adapters.load(req.Name) {
		s.writeError(w, openai.Invalid("lora_name", "", "The lora adapter '%s' has already been loaded.", req.Name))
		return
	}
	_, _ = io.WriteString(w, "Success: LoRA adapter '"+req.Name+"' added successfully.")
}

// unloadAdapter serves /v1/unload_lora_adapter. The blocks of the adapter stay in the prefix cache until they are evicted.
func (s *Sim) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	req, ok := s.readAdapterRequest(w, r)
	if !ok {
		return
	}
	if !s.adapters.unload(req.Name) {
		s.writeError(w, &openai.Error{Status: http.StatusNotFound,
			Message: fmt.Sprintf("The lora adapter '%s' cannot be found.", req.Name)})
		return
	}
	_, _ = io.WriteString(w, "Success: LoRA adapter '"+req.Name+"' removed successfully.")
}
