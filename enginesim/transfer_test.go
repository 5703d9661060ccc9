package enginesim_test

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/handoff"
)

func transfers(c *enginesim.Config) {
	c.KVTransfer = "127.0.0.1:0"
	c.TransferTimeout = 100 * time.Millisecond
}

const split = `{"model":"tiny","prompt":"A prompt that two engines serve","max_tokens":5}`

// prefill has an engine compute a prompt and returns the request for another one.
func (r *running) prefill(body string) string {
	r.t.Helper()
	transfer := handoff.Transfer{Kind: fleet.TransferNixl, Endpoint: handoff.Completions}
	ask, err := transfer.Prefill(nil, []byte(body))
	if err != nil {
		r.t.Fatal(err)
	}
	status, answer := r.post("/v1/completions", string(ask))
	decode, err := transfer.Decode(nil, []byte(body), []byte(answer))
	if status != http.StatusOK || err != nil {
		r.t.Fatalf("%d %s: %v", status, answer, err)
	}
	return string(decode)
}

// metric returns the value of a metric.
func (r *running) metric(name string) string {
	_, page := r.get("/metrics")
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, name+"{"); ok {
			return strings.TrimSpace(value[strings.Index(value, "} ")+2:])
		}
	}
	return "none"
}

const (
	inUse   = "vllm:kv_cache_usage_perc"
	fetched = "vllm:prompt_tokens_by_source_total"
	expired = "vllm:nixl_num_kv_expired_reqs_total"
)

// TestTransfer: one engine computes a prompt and keeps its blocks, and another one fetches them once and answers as the first
// would.
func TestTransfer(t *testing.T) {
	p, d := start(t, transfers), start(t, transfers)
	body := p.prefill(split)
	if used := p.metric(inUse); used != "0.125" { // 8 of 64 blocks
		t.Errorf("%s of the cache is kept", used)
	}

	answer := d.ask("/v1/completions", body)
	if want := strconv.Itoa(answer.Usage.Prompt); d.metric(fetched) != want || answer.Usage.Answer != 5 {
		t.Errorf("%s tokens fetched, want %s: %+v", d.metric(fetched), want, answer.Usage)
	}
	if d.metric("vllm:prompt_tokens_total") != "0" || p.metric(inUse) != "0" || d.metric(inUse) != "0" {
		t.Errorf("computed %s tokens; caches in use: %s, %s", d.metric("vllm:prompt_tokens_total"), p.metric(inUse), d.metric(inUse))
	}
	alone := p.ask("/v1/completions", split)
	if alone.Choices[0].Text != answer.Choices[0].Text {
		t.Errorf("%q, and %q with a transfer", alone.Choices[0].Text, answer.Choices[0].Text)
	}

	if status, answer := d.post("/v1/completions", body); status != http.StatusInternalServerError {
		t.Errorf("fetched twice: %d %s", status, answer)
	}
	other := strings.Replace(p.prefill(split), "two engines", "2 engines..", 1)
	if status, answer := d.post("/v1/completions", other); status != http.StatusInternalServerError {
		t.Errorf("the blocks of another prompt: %d %s", status, answer)
	}
}

// TestTransferFails: the answers are the same as vLLM's, and no block stays in use.
func TestTransferFails(t *testing.T) {
	short := func(c *enginesim.Config) { transfers(c); c.Lease = time.Millisecond }
	p, d := start(t, short), start(t, transfers)
	body := p.prefill(split)
	p.until("expired", func() bool { return p.metric(expired) == "1" && p.metric(inUse) == "0" })

	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := closed.Addr().(*net.TCPAddr).Port
	_ = closed.Close()
	for name, body := range map[string]string{
		"an expired lease":     body,
		"no host":              strings.Replace(body, `"remote_host":"127.0.0.1"`, `"remote_host":""`, 1),
		"an unreachable port":  `{"model":"tiny","prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"a","remote_request_id":"a","remote_host":"127.0.0.1","tp_size":1,"remote_port":` + strconv.Itoa(port) + `}}`,
		"no request and no id": `{"model":"tiny","prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]]}}`,
	} {
		status, answer := d.post("/v1/completions", body)
		if status != http.StatusInternalServerError || !strings.Contains(answer, "Internal server error") {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if d.metric(inUse) != "0" || d.metric(fetched) != "0" {
		t.Errorf("%s of the cache is in use, %s tokens fetched", d.metric(inUse), d.metric(fetched))
	}

	// An engine without transfers ignores the parameters.
	plain := start(t, nil)
	if answer := plain.ask("/v1/completions", body); answer.Usage.Answer != 5 {
		t.Errorf("%+v", answer.Usage)
	}
}

// TestTransferWithoutBlocks: blocks that nothing names end the engine, as in vLLM.
func TestTransferWithoutBlocks(t *testing.T) {
	r := start(t, transfers)
	status, answer := r.post("/v1/completions", `{"model":"tiny","prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}`)
	if status != http.StatusInternalServerError || !strings.Contains(answer, "EngineCore") {
		t.Errorf("%d %s", status, answer)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := r.wait(); err == nil || !strings.Contains(err.Error(), "without remote_block_ids") {
		t.Errorf("the engine ended with %v", err)
	}
}

// TestTransferClientsLeave: both engines free all blocks.
func TestTransferClientsLeave(t *testing.T) {
	stuck := start(t, transferring(fleet.TransferNixl, func(c *enginesim.Config) { c.Engine.Timing = hours{} }))
	leaves := stuck.later(completions, with(`"kv_transfer_params":{"do_remote_decode":true}`))
	stuck.until("computing", func() bool { return stuck.metric(inUse) != "0" })
	leaves.leave()
	free(stuck)

	slow := func(c *enginesim.Config) { patient(c); c.TransferBase = time.Hour }
	p, d := start(t, transferring(fleet.TransferNixl)), start(t, transferring(fleet.TransferNixl, slow))
	leaves = d.later(completions, p.prefill(split))
	leaves.waits()
	leaves.leave()
	free(p, d)
}

// FuzzTransfer: any value of kv_transfer_params is answered, or ends the engine, and keeps no blocks.
func FuzzTransfer(f *testing.F) {
	for _, seed := range []string{`null`, `{}`, `{"do_remote_decode":true}`, `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_port":-1}`,
		`{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_port":70000,"remote_host":"[","remote_engine_id":"a","remote_request_id":"b","tp_size":1}`} {
		f.Add(seed)
	}
	fuzzMembers(f, fleet.TransferNixl, func(text string) string { return `"kv_transfer_params":` + text })
}
