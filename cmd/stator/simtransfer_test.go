package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/testkit"
)

// TestSimulatedEnginesTransfer: two engines that `stator sim` starts transfer the KV cache of a prompt by the handshakes in which
// requests name the side channel. With p2p they find each other's blocks, so they have one hash seed.
func TestSimulatedEnginesTransfer(t *testing.T) {
	prompt := strings.Repeat("words of a prompt ", 20)
	for kind, c := range map[string]struct {
		prefill, decode string // members of the requests, with the port of the prefill engine
		halves          []string
	}{
		"p2p": {`"kv_transfer_params":{"remote_decoder":{"kv_request_id":"a"}},"x":%d`,
			`"kv_transfer_params":{"remote_prefiller":{"kv_request_id":"a","remote_host":"127.0.0.1","remote_port":%d}}`, []string{"", ""}},
		"bootstrap": {`"bootstrap_host":"127.0.0.1","bootstrap_room":1,"bootstrap_port":%d`,
			`"bootstrap_host":"127.0.0.1","bootstrap_room":1,"bootstrap_port":%d`, []string{"prefill", "decode"}},
	} {
		var urls []string
		port := 0
		for i, half := range c.halves {
			engine := startCommand(t, "address=", "sim", "--listen-address", "127.0.0.1:0", "--engine-speedup", "100",
				"--kv-transfer", "127.0.0.1:0", "--kv-transfer-kind", kind, "--kv-transfer-role", half)
			url := "http://" + engine.match(t, ` address=(\S+)`)
			testkit.Eventually(t, "the engine is ready", func() bool { return postTo(url+"/tokenize", `{"prompt":"a"}`) != "" })
			urls = append(urls, url+"/v1/completions")
			if i == 0 {
				_, _ = fmt.Sscan(engine.match(t, `transfers=127\.0\.0\.1:(\d+)`), &port)
			}
		}

		// Both requests are sent at once.
		answers := make(chan string, 2)
		for i, members := range []string{c.prefill, c.decode} {
			body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":4,`+members+`}`, prompt, port)
			go func() { answers <- postTo(urls[i], body) }()
		}
		cached, tokens := 0, 0
		for range 2 {
			var got struct {
				Usage struct {
					Completion int `json:"completion_tokens"`
					Details    struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			text := <-answers
			if err := json.Unmarshal([]byte(text), &got); err != nil || got.Usage.Completion == 0 {
				t.Errorf("%s: %s", kind, text)
			}
			cached += got.Usage.Details.Cached
			tokens += got.Usage.Completion
		}
		if want := map[string]int{"p2p": 8, "bootstrap": 5}[kind]; tokens != want || (cached > 0) != (kind == "p2p") {
			t.Errorf("%s: %d tokens, want %d; %d are cached", kind, tokens, want, cached)
		}
		http.DefaultClient.CloseIdleConnections()
	}
}

// postTo returns the answer of an engine, or the error. An engine that loads has none.
func postTo(url, body string) string {
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusServiceUnavailable {
		return ""
	}
	return string(text)
}
