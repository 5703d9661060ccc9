package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/node"
)

// The bounds of the body of a call: its bytes, and the time in which it must arrive.
const (
	maxCallBytes = 1 << 20
	callWithin   = 10 * time.Second
)

// post registers a call that changes something. Browsers are refused, because a page of another site could call a port without a token:
// they send Origin or Sec-Fetch-Site with each POST.
func (p *pages) post(path string, h http.HandlerFunc) { p.postOf(path, maxCallBytes, h) }

// postOf is post with a bound of the body in bytes.
func (p *pages) postOf(path string, most int64, h http.HandlerFunc) {
	p.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			http.Error(w, "browsers may not change anything here: use stator kv, stator drain or curl", http.StatusForbidden)
			return
		}
		media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
		if !strings.EqualFold(strings.TrimSpace(media), "application/json") {
			http.Error(w, "send JSON with `Content-Type: application/json`", http.StatusUnsupportedMediaType)
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(callWithin)) // a server of a test may have none
		r.Body = http.MaxBytesReader(w, r.Body, most)
		h(w, r)
	})
	p.served[path] = true
}

// readCall reads the body of a call, which is one JSON object without unknown members.
func readCall(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read the body: there is more than one JSON object")
	}
	return nil
}

// kvBlocks are the members of a call that name blocks.
type kvBlocks struct {
	Keys   []string `json:"keys"`
	Hashes []kvHash `json:"hashes"`
}

// kvHash is an engine's hash: a number, or text in decimal, or in hexadecimal with 0x.
type kvHash uint64

// UnmarshalJSON reads a hash.
func (h *kvHash) UnmarshalJSON(text []byte) error {
	digits, base := strings.Trim(string(text), `"`), 10
	if hex, ok := strings.CutPrefix(digits, "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return fmt.Errorf("%s is no hash: write 64 bits in decimal, or in hexadecimal with 0x", text)
	}
	*h = kvHash(n)
	return nil
}

func (b *kvBlocks) parse() (out node.Blocks, err error) {
	for _, text := range b.Keys {
		key, err := block.ParseKey(text)
		if err != nil {
			return out, err
		}
		out.Keys = append(out.Keys, key)
	}
	for _, h := range b.Hashes {
		out.Hashes = append(out.Hashes, uint64(h))
	}
	return out, nil
}

func (s Sources) pinKV(w http.ResponseWriter, r *http.Request) {
	var call struct {
		Model string `json:"model"`
		TTL   string `json:"ttl"`
		kvBlocks
	}
	if err := readCall(r, &call); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ttl, err := time.ParseDuration(call.TTL)
	if err != nil {
		http.Error(w, fmt.Sprintf("ttl %q is no time: write 10m or 24h, and 0 to end pins", call.TTL), http.StatusBadRequest)
		return
	}
	s.change(w, call.Model, &call.kvBlocks, func(store KVStore, blocks node.Blocks) (any, error) {
		pinned, err := store.Pin(r.Context(), blocks, ttl)
		return kvPinned{len(blocks.Keys) + len(blocks.Hashes), pinned}, err
	})
}

// kvPinned is the answer of /kv/pin: how many blocks were named, and how many of them are on a tier that keeps pinned blocks.
type kvPinned struct {
	Named  int `json:"named"`
	Pinned int `json:"pinned"`
}

func (s Sources) prefetchKV(w http.ResponseWriter, r *http.Request) {
	var call struct {
		Model string `json:"model"`
		kvBlocks
	}
	if err := readCall(r, &call); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.change(w, call.Model, &call.kvBlocks, func(store KVStore, blocks node.Blocks) (any, error) {
		there, err := store.Prefetch(r.Context(), blocks)
		return kvPrefetched{len(blocks.Keys) + len(blocks.Hashes), there}, err
	})
}

// kvPrefetched is the answer of /kv/prefetch: how many blocks were named, and how many of the first ones are in host memory.
type kvPrefetched struct {
	Named int `json:"named"`
	There int `json:"in_host_memory"`
}

func (s Sources) flushKV(w http.ResponseWriter, r *http.Request) {
	var call struct {
		Model string `json:"model"`
		Tier  string `json:"tier"`
	}
	if err := readCall(r, &call); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.change(w, call.Model, &kvBlocks{}, func(store KVStore, _ node.Blocks) (any, error) {
		blocks, err := store.Flush(r.Context(), call.Tier)
		left := map[string]int{}
		for tier, n := range blocks {
			left[tier.String()] = n
		}
		return kvFlushed{left}, err
	})
}

// kvFlushed is the answer of /kv/flush: how many blocks have left each tier.
type kvFlushed struct {
	Left map[string]int `json:"left"`
}

// change applies a call to the store of a model, and answers it. The model may be left out if there is one store.
func (s Sources) change(w http.ResponseWriter, model string, named *kvBlocks, apply func(KVStore, node.Blocks) (any, error)) {
	store, names := s.findKV(model)
	if store == nil {
		http.Error(w, fmt.Sprintf("there is no KV store of model %q: there is one of %s", model, names), http.StatusNotFound)
		return
	}
	blocks, err := named.parse()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := apply(store, blocks)
	if err != nil {
		http.Error(w, err.Error(), kvStatus(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // an error means that the client is gone
}

// findKV returns the store of a model, or nil and the models that have one.
func (s Sources) findKV(model string) (found KVStore, names string) {
	var all []string
	for _, store := range s.KV {
		name := store.Model()
		if name == model || model == "" && len(s.KV) == 1 {
			return store, ""
		}
		all = append(all, name)
	}
	if len(all) == 0 {
		return nil, "no model; set models[].kv.hostBytes"
	}
	return nil, strings.Join(all, ", ")
}

// kvStatus returns the HTTP status of an error of a store.
func kvStatus(err error) int {
	switch {
	case errors.Is(err, node.ErrBounds) || errors.Is(err, kvbm.ErrNoFlush):
		return http.StatusBadRequest
	case errors.Is(err, node.ErrClosed) || errors.Is(err, node.ErrBusy):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
