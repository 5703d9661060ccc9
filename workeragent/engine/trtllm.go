package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// inFile is the argument that becomes the options file.
const inFile = "options"

// eventBuffer is the number of KV events that TensorRT-LLM keeps for its reader.
const eventBuffer = 16384

// trtllmOptions returns the content of the options file, and sets the worker's blocks if it bounds the cache.
func (l Launch) trtllmOptions(c *Command) ([]byte, error) {
	all := map[string]any{}
	if text := l.Args[inFile]; text != "" {
		read := json.NewDecoder(strings.NewReader(text))
		read.UseNumber()
		if err := read.Decode(&all); err != nil || all == nil {
			return nil, fmt.Errorf("args.options of %s must be a map: the members of TensorRT-LLM's --extra_llm_api_options", l.Name)
		}
	}
	cache, err := l.section(all, "kv_cache_config")
	if err != nil {
		return nil, err
	}
	for member, instead := range map[string]string{
		"tokens_per_block": "use models[].blockSize", "enable_block_reuse": "the agent sets it, because the router needs the prefix cache",
	} {
		if _, has := cache[member]; has {
			return nil, fmt.Errorf("args.options.kv_cache_config.%s of %s: %s", member, l.Name, instead)
		}
	}

	cache["tokens_per_block"], cache["enable_block_reuse"] = l.BlockSize, true
	setDefault(cache, "event_buffer_max_size", eventBuffer)
	setDefault(all, "return_perf_metrics", true)
	if l.Role != fleet.Aggregated {
		transceiver, err := l.section(all, "cache_transceiver_config")
		if err != nil {
			return nil, err
		}
		setDefault(transceiver, "backend", "DEFAULT")
	}
	if l.Role == fleet.Prefill {
		setDefault(all, "disable_overlap_scheduler", true) // TensorRT-LLM needs it for context-only requests
	}
	if tokens, err := strconv.Atoi(fmt.Sprint(cache["max_tokens"])); err == nil && tokens > 0 {
		c.Worker.Blocks = fleet.BlocksOf(tokens, l.BlockSize)
	}
	return encodeOptions(all), nil
}

// section returns a map in the options, which it adds if it is not there.
func (l Launch) section(all map[string]any, name string) (map[string]any, error) {
	setDefault(all, name, map[string]any{})
	section, ok := all[name].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("args.options.%s of %s must be a map", name, l.Name)
	}
	return section, nil
}

// setDefault sets a member that is not there.
func setDefault(in map[string]any, name string, value any) {
	if _, has := in[name]; !has {
		in[name] = value
	}
}

// encodeOptions returns settings as JSON, which is YAML too.
func encodeOptions(all map[string]any) []byte {
	var b bytes.Buffer
	b.WriteString(toJSON(all))
	b.WriteByte('\n')
	return b.Bytes()
}

// optionsFile is a file that an engine reads at its start. It is named like a socket of the engine, so that it is removed with
// these.
type optionsFile struct {
	path string
	text []byte
}

// write writes the file. A nil file is none.
func (f *optionsFile) write() error {
	if f == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("write the options file of an engine: %w", err)
	}
	if err := os.WriteFile(f.path, f.text, 0o600); err != nil {
		return fmt.Errorf("write the options file of an engine: %w", err)
	}
	return nil
}
