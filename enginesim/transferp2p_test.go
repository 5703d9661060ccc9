package enginesim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/fleet"
)

// pending is a request whose answer comes later.
type pending struct {
	t     *testing.T
	leave func()      // has the client leave
	got   chan string // the status and the body, or the error of a client that left
}

// later sends a request and returns before its answer. The client leaves at the end of the test at the latest.
func (r *running) later(path, body string) *pending {
	ctx, leave := context.WithCancel(context.Background())
	p := &pending{t: r.t, leave: leave, got: make(chan string, 1)}
	r.t.Cleanup(leave)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.Addr()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			p.got <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		p.got <- fmt.Sprint(resp.StatusCode, " ", string(text))
	}()
	return p
}

// status waits for an answer.
func (p *pending) status() (status int, body string) {
	p.t.Helper()
	select {
	case text := <-p.got:
		_, _ = fmt.Sscan(text, &status)
		_, body, _ = strings.Cut(text, " ")
		return status, body
	case <-time.After(40 * time.Second): // less than the patience of an engine
		p.t.Fatal("no answer")
		return 0, ""
	}
}

// answer waits for the answer of a request that is not refused.
func (p *pending) answer() reply {
	p.t.Helper()
	status, text := p.status()
	var got reply
	if err := json.Unmarshal([]byte(text), &got); status != http.StatusOK || err != nil {
		p.t.Fatalf("%d, %v: %s", status, err, text)
	}
	return got
}

// waits checks that an answer does not come by itself.
func (p *pending) waits() {
	p.t.Helper()
	select {
	case text := <-p.got:
		p.t.Errorf("answered at once: %s", text)
	case <-time.After(20 * time.Millisecond):
	}
}

// free waits until no request and no lease has blocks.
func free(engines ...*running) {
	for _, r := range engines {
		r.t.Helper()
		r.until("free", func() bool { return r.metric(inUse) == "0" && r.Leases() == 0 })
	}
}

// transferring returns a configuration with transfers of a kind, and with short times.
func transferring(kind fleet.Transfer, change ...func(*enginesim.Config)) func(*enginesim.Config) {
	return func(c *enginesim.Config) {
		transfers(c)
		c.KVTransferKind = kind
		c.TransferTimeout = 200 * time.Millisecond
		for _, f := range change {
			f(c)
		}
	}
}

// patient has an engine wait so long that a test which depends on the timeout fails.
func patient(c *enginesim.Config) { c.TransferTimeout = time.Minute }

// with returns the request split with further members.
func with(members string, args ...any) string {
	return split[:len(split)-1] + "," + fmt.Sprintf(members, args...) + "}"
}

func keepFor(id string) string {
	return strings.Replace(with(`"kv_transfer_params":{"remote_decoder":{"kv_request_id":"%s"}}`, id), `"max_tokens":5`, `"max_tokens":1`, 1)
}

// from returns a request whose blocks are fetched from an engine.
func (r *running) from(role, id string) string {
	return with(`"kv_transfer_params":{"%s":{"kv_request_id":"%s","remote_host":"127.0.0.1","remote_port":%d}}`, role, id, r.TransferPort())
}

const (
	completions = "/v1/completions"
	computed    = "vllm:prompt_tokens_total"
	tierBytes   = "vllm:kv_offload_tiering_read_bytes_total"
	splitPrompt = "A prompt that two engines serve" // of split: 31 tokens in blocks of 4, and the last token must be computed
	complete    = 28
)

// TestP2P: the decode engine waits for the complete blocks of the prefill engine, whichever of the requests is first, and computes
// the rest.
func TestP2P(t *testing.T) {
	p, d := start(t, transferring(fleet.TransferP2P, patient)), start(t, transferring(fleet.TransferP2P, patient))
	alone := start(t, nil).ask(completions, split)
	for _, decodeFirst := range []bool{false, true} {
		id := fmt.Sprint("transfer-", decodeFirst)
		var first, second *pending
		if decodeFirst {
			second = d.later(completions, p.from("remote_prefiller", id))
			second.waits()
			first = p.later(completions, keepFor(id))
		} else {
			first = p.later(completions, keepFor(id))
			first.answer()
			if used := p.metric(inUse); used != "0.125" { // 8 of 64 blocks
				t.Errorf("%s of the cache is kept", used)
			}
			first = p.later(completions, keepFor("another"))
			second = d.later(completions, p.from("remote_prefiller", id))
		}

		got := second.answer()
		if got.Choices[0].Text != alone.Choices[0].Text || got.Usage.Details.Cached != complete || got.Usage.Answer != 5 {
			t.Errorf("decode first %v: %q with %+v, want %q", decodeFirst, got.Choices[0].Text, got.Usage, alone.Choices[0].Text)
		}
		if _, text := first.status(); !strings.Contains(text, `"kv_transfer_params":null`) {
			t.Errorf("the prefill engine answers %s", text)
		}
		p.ask(completions, `{"model":"tiny","prompt":"x","max_tokens":1}`)
		_, _ = d.post("/reset_prefix_cache", "")
	}

	if d.metric(fetched) != "56" || d.metric(tierBytes) != "57344" || d.metric(computed) != "6" {
		t.Errorf("fetched %s tokens in %s bytes, computed %s", d.metric(fetched), d.metric(tierBytes), d.metric(computed))
	}
	if got := d.metric("vllm:prompt_tokens_cached_by_source_total"); got != "56" {
		t.Errorf("%s tokens of peers", got)
	}
	free(d)
	if n := p.Leases(); n != 1 {
		t.Errorf("%d prompts are kept, want that of the request without a decode engine", n)
	}
}

// TestP2PFallsBack: whatever fails, the decode engine computes the prompt, and both engines free all blocks.
func TestP2PFallsBack(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closedPort := closed.Addr().(*net.TCPAddr).Port
	_ = closed.Close()
	p, d := start(t, transferring(fleet.TransferP2P)), start(t, transferring(fleet.TransferP2P))
	calm := start(t, transferring(fleet.TransferP2P, patient))
	seeded := start(t, transferring(fleet.TransferP2P, patient, func(c *enginesim.Config) { c.Engine.HashSeed = 7 }))
	unreachable := with(`"kv_transfer_params":{"remote_prefiller":{"kv_request_id":"a","remote_host":"127.0.0.1","remote_port":%d}}`, closedPort)

	for name, c := range map[string]struct {
		prefill, decode string
		at              *running
		timeout         bool
	}{
		"the prefill engine never comes": {"", p.from("remote_prefiller", "never"), d, true},
		"it is unreachable":              {"", unreachable, d, true},
		"nothing is cached there":        {"", p.from("remote_kv_source", "fresh"), calm, false},
		"the source is unreachable":      {"", strings.Replace(unreachable, "remote_prefiller", "remote_kv_source", 1), d, true},
		"the seeds differ":               {"", p.from("remote_prefiller", "seed"), seeded, false},
		"another prompt":                 {strings.Replace(keepFor("other"), "two", "2..", 1), p.from("remote_prefiller", "other"), calm, false},
		"no id":                          {"", strings.Replace(p.from("remote_prefiller", "x"), `"kv_request_id":"x"`, `"kv_request_id":""`, 1), calm, false},
		"no host":                        {"", strings.Replace(p.from("remote_prefiller", "x"), `"127.0.0.1"`, `null`, 1), calm, false},
		"no port":                        {"", strings.Replace(unreachable, fmt.Sprint(closedPort), "0", 1), calm, false},
		"an empty role":                  {"", with(`"kv_transfer_params":{"remote_prefiller":{},"remote_kv_source":[]}`), calm, false},
		"an id to keep is missing":       {"", with(`"kv_transfer_params":{"remote_decoder":{}}`), calm, false},
		"no parameters":                  {"", with(`"kv_transfer_params":null`), calm, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, _ = p.post("/reset_prefix_cache", "")
			if c.prefill != "" {
				p.later(completions, c.prefill).answer()
			}
			begin := time.Now()
			_, _ = c.at.post("/reset_prefix_cache", "")
			got := c.at.later(completions, c.decode).answer()
			if got.Usage.Details.Cached != 0 || got.Usage.Answer != 5 {
				t.Errorf("%+v", got.Usage)
			}
			// Engines that must not wait are patient: one that waits has no answer in time.
			if took := time.Since(begin); c.timeout && took < 200*time.Millisecond {
				t.Errorf("answered after %v", took)
			}
			free(p, c.at)
		})
	}
	if d.metric(fetched) != "0" || calm.metric(fetched) != "0" {
		t.Errorf("%s and %s tokens fetched", d.metric(fetched), calm.metric(fetched))
	}
}

// TestP2PRefuses: members of a wrong type are an error, or end the engine, as in vLLM.
func TestP2PRefuses(t *testing.T) {
	r := start(t, transferring(fleet.TransferP2P))
	for _, params := range []string{`"x"`, `[]`, `7`, `true`} {
		if status, text := r.post(completions, with(`"kv_transfer_params":%s`, params)); status != http.StatusBadRequest || !strings.Contains(text, "dictionary") {
			t.Errorf("%s: %d %s", params, status, text)
		}
	}
	if status, _ := r.post(completions, with(`"kv_transfer_params":{`)); status != http.StatusBadRequest {
		t.Errorf("malformed: %d", status)
	}

	for _, params := range []string{
		`{"remote_decoder":"x"}`, `{"remote_decoder":[]}`, `{"remote_decoder":{"kv_request_id":["x"]}}`, `{"remote_prefiller":"x"}`,
		`{"remote_kv_source":7}`, `{"remote_prefiller":{"kv_request_id":{"a":1},"remote_host":"h","remote_port":1}}`,
		`{"remote_prefiller":{"kv_request_id":"x","remote_host":"h","remote_port":"http"}}`,
		`{"remote_prefiller":{"kv_request_id":"x","remote_host":"h","remote_port":65536}}`,
	} {
		r := start(t, transferring(fleet.TransferP2P))
		status, text := r.post(completions, with(`"kv_transfer_params":%s`, params))
		if status != http.StatusInternalServerError || !strings.Contains(text, "EngineCore") {
			t.Errorf("%s: %d %s", params, status, text)
		}
		http.DefaultClient.CloseIdleConnections()
		if err := r.wait(); err == nil {
			t.Errorf("%s does not end the engine", params)
		}
	}
}

// TestP2PPullsAPrefix: an engine copies the complete blocks of a prefix that another one has cached and it has not, also while it
// computes the prompt for a third one.
func TestP2PPullsAPrefix(t *testing.T) {
	source, p, d := start(t, transferring(fleet.TransferP2P, patient)), start(t, transferring(fleet.TransferP2P, patient)),
		start(t, transferring(fleet.TransferP2P, patient))
	source.ask(completions, `{"model":"tiny","prompt":"A prompt that two","max_tokens":1}`) // 4 blocks are cached
	d.ask(completions, `{"model":"tiny","prompt":"A prompt","max_tokens":1}`)               // 2 blocks
	alone := source.ask(completions, `{"model":"tiny","prompt":"`+splitPrompt[:20]+`","max_tokens":3}`)

	got := d.later(completions, strings.Replace(source.from("remote_kv_source", "1"), splitPrompt, splitPrompt[:20], 1)).answer()
	if got.Usage.Details.Cached != 16 || d.metric(fetched) != "8" || !strings.HasPrefix(got.Choices[0].Text, alone.Choices[0].Text) {
		t.Errorf("%+v, %s tokens fetched: %q, want %q", got.Usage, d.metric(fetched), got.Choices[0].Text, alone.Choices[0].Text)
	}

	// A decode engine fetches from an engine that has pulled a part of the prompt.
	_, _ = d.post("/reset_prefix_cache", "")
	both := strings.Replace(source.from("remote_kv_source", "2"), `"kv_transfer_params":{`, `"kv_transfer_params":{"remote_decoder":{"kv_request_id":"3"},`, 1)
	first, second := p.later(completions, both), d.later(completions, p.from("remote_prefiller", "3"))
	if a, b := first.answer(), second.answer(); a.Usage.Details.Cached != 20 || b.Usage.Details.Cached != complete ||
		a.Choices[0].Text != b.Choices[0].Text {
		t.Errorf("%+v and %+v", a, b)
	}
	free(source, p, d)
}

// TestP2PClientsLeave: the other engine is not left waiting, and both free all blocks.
func TestP2PClientsLeave(t *testing.T) {
	slow := func(c *enginesim.Config) { patient(c); c.TransferBase = time.Hour }
	p, d := start(t, transferring(fleet.TransferP2P, slow)), start(t, transferring(fleet.TransferP2P, slow))

	// The client of the decode engine leaves before the prefill engine is asked, and during the transfer.
	waiting := d.later(completions, p.from("remote_prefiller", "a"))
	waiting.waits()
	waiting.leave()
	d.until("left", func() bool { _, load := d.get("/load"); return strings.Contains(load, `:0`) })
	p.later(completions, keepFor("b")).answer()
	waiting = d.later(completions, p.from("remote_prefiller", "b"))
	waiting.waits()
	waiting.leave()
	free(p, d)

	// The client of the prefill engine leaves while the prompt is computed.
	stuck := start(t, transferring(fleet.TransferP2P, patient, func(c *enginesim.Config) { c.Engine.Timing = hours{} }))
	first := stuck.later(completions, keepFor("c"))
	waiting = d.later(completions, stuck.from("remote_prefiller", "c"))
	stuck.until("computing", func() bool { return stuck.metric(inUse) != "0" })
	waiting.waits()
	first.leave()
	if got := waiting.answer(); got.Usage.Details.Cached != 0 {
		t.Errorf("%+v", got.Usage)
	}
	free(stuck, d)
}

// TestP2PStoresExpire: blocks that no engine fetches are freed, and a fetch that comes later waits for nothing.
func TestP2PStoresExpire(t *testing.T) {
	short := func(c *enginesim.Config) { c.Lease = 10 * time.Millisecond }
	p, d := start(t, transferring(fleet.TransferP2P, short)), start(t, transferring(fleet.TransferP2P))
	p.later(completions, keepFor("a")).answer()
	free(p)
	if got := d.later(completions, p.from("remote_prefiller", "a")).answer(); got.Usage.Details.Cached != 0 {
		t.Errorf("%+v", got.Usage)
	}
	free(d)
}

// TestTransfersEndWithTheEngine: an engine that stops ends the transfers of others at once.
func TestTransfersEndWithTheEngine(t *testing.T) {
	p, d := start(t, transferring(fleet.TransferP2P, patient)), start(t, transferring(fleet.TransferP2P, patient))
	p.later(completions, keepFor("kept")).answer()
	waiting := d.later(completions, p.from("remote_prefiller", "never"))
	waiting.waits()
	begin := time.Now()
	http.DefaultClient.CloseIdleConnections()
	if err := p.stop(); err != nil || time.Since(begin) > 40*time.Second || p.Leases() != 0 {
		t.Errorf("stopped after %v with %d leases: %v", time.Since(begin), p.Leases(), err)
	}
	if got := waiting.answer(); got.Usage.Details.Cached != 0 {
		t.Errorf("%+v", got.Usage)
	}

	pre, dec := halves(t, patient)
	body := pre.room(1)
	waiting = dec.later(completions, body)
	waiting.waits()
	http.DefaultClient.CloseIdleConnections()
	if err := pre.stop(); err != nil {
		t.Error(err)
	}
	if status, text := waiting.status(); status != http.StatusInternalServerError || !strings.Contains(text, "Decode transfer failed") {
		t.Errorf("%d %s", status, text)
	}
	free(d, dec)
}

// FuzzP2P: any value of kv_transfer_params is answered, or ends the engine, and keeps no blocks.
func FuzzP2P(f *testing.F) {
	for _, seed := range []string{`null`, `{}`, `{"remote_decoder":{"kv_request_id":"a"}}`, `{"remote_prefiller":{"kv_request_id":1,"remote_host":"::1","remote_port":"1"}}`,
		`{"remote_kv_source":{"kv_request_id":"a","remote_host":"\u0000","remote_port":-1}}`} {
		f.Add(seed)
	}
	fuzzMembers(f, fleet.TransferP2P, func(text string) string { return `"kv_transfer_params":` + text })
}
