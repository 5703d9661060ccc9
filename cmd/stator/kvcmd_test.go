package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// kvPort is an admin port that records the last call, with stores of a simulated engine, of another one, and one that is not open.
func kvPort(t *testing.T) (address string, called *string) {
	called = new(string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*called = r.Method + " " + r.URL.RequestURI() + " " + string(body)
		switch r.URL.Path {
		case "/debug/kv":
			fmt.Fprint(w, `[{"model": "sim", "layout": {"page_tokens": 4, "hashing": "simulated, seed 7"}},
				{"model": "real", "layout": {"page_tokens": 4, "hashing": "sha256"}}, {"model": "new", "layout": null}]`)
		case "/kv/pin":
			if strings.Contains(string(body), `"hashes":["bad"]`) {
				http.Error(w, `"bad" is no hash`, http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, `{"named": 3, "pinned": 2}`)
		case "/kv/prefetch":
			fmt.Fprint(w, `{"named": 3, "in_host_memory": 1}`)
		case "/kv/flush":
			fmt.Fprint(w, `{"left": {"host": 9, "disk": 20}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), called
}

// TestKVCommands: each command sends its call, and prints the result or the error.
func TestKVCommands(t *testing.T) {
	address, called := kvPort(t)
	for _, c := range []struct{ args, in, called, out, fails string }{
		{"show --json", "", "GET /debug/kv?format=json", `[{"model": "sim"`, ""},
		{"show", "", "GET /debug/kv ", `[{"model": "sim"`, ""},
		{"pin --model sim --hashes 1,0x2 --keys ab --ttl 2h", "",
			`POST /kv/pin {"hashes":["1","0x2"],"keys":["ab"],"model":"sim","ttl":"2h0m0s"}`, "2 of 3 blocks are pinned for 2h0m0s\n", ""},
		{"pin --hashes 1 --ttl 0", "", `"ttl":"0s"`, "2 of 3 blocks are no longer pinned\n", ""},
		{"pin --hashes bad", "", "", "", `"bad" is no hash`},
		{"prefetch --model sim --hashes 1", "", "POST /kv/prefetch ", "the first 1 of 3 blocks are in host memory\n", ""},
		{"flush --tier host", "", `POST /kv/flush {"model":"","tier":"host"}`, "20 blocks have left the tier disk\n9 blocks have left the tier host\n", ""},
		{"flush", "", "POST /kv/flush", "20 blocks have left the tier disk\n9 blocks have left the tier host\n", ""},
		{"pin --model sim --prompts -", `{"prompt": [1, 2, 3, 4, 5]}` + "\n\n" + `{"prompt": [1, 2, 3, 4, 9, 8, 7, 6]}` + "\n",
			"POST /kv/pin", "2 of 3 blocks are pinned for 1h0m0s\n2 of 3 blocks are pinned for 1h0m0s\n", ""},
		{"pin --model sim --prompts -", `{"prompt": [1, 2]}`, "", "", "--prompts, line 1: the prompt has 2 tokens, and a block has 4"},
		{"pin --model sim --prompts -", `{"prompt": [[1, 2, 3, 4], [1, 2, 3, 4]]}`, "", "", "a request must have one prompt"},
		{"pin --model sim --prompts absent", "", "", "", "--prompts: open absent"},
		{"pin --model sim --prompts - --model-dir absent", "", "", "", "--model-dir: "},
		{"pin --model real --prompts -", "", "", "", `the engines of real hash prompts as "sha256": name blocks by --hashes or --keys`},
		{"pin --model new --prompts -", "", "", "", "the KV store of new is not open"},
		{"pin --model none --prompts -", "", "", "", `there is no KV store of model "none"`},
	} {
		out, err := runCommand(t, c.in, append([]string{"kv", "--admin-address", address}, strings.Fields(c.args)...)...)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("kv %s: %v, want %q", c.args, err, c.fails)
			}
			continue
		}
		if err != nil || !strings.HasPrefix(out, c.out) || !strings.Contains(*called, c.called) {
			t.Errorf("kv %s: %v, %q, called %s", c.args, err, out, *called)
		}
	}

	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for _, command := range []string{"flush", "show"} {
		_, err := runCommand(t, "", "kv", command, "--admin-address", strings.TrimPrefix(other.URL, "http://"))
		if err == nil || !strings.Contains(err.Error(), "--admin-address must be that of the agent") {
			t.Errorf("%s of a port without stores: %v", command, err)
		}
	}
}
