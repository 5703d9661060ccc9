package enginesim_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/fleet"
)

// halves starts a prefill and a decode engine with the handshake of SGLang.
func halves(t *testing.T, change ...func(*enginesim.Config)) (p, d *running) {
	t.Helper()
	return start(t, transferring(fleet.TransferBootstrap, append(change, role(fleet.Prefill))...)),
		start(t, transferring(fleet.TransferBootstrap, append(change, role(fleet.Decode))...))
}

func role(r fleet.Role) func(*enginesim.Config) {
	return func(c *enginesim.Config) { c.KVTransferRole = r }
}

// room returns the request that both engines get.
func (r *running) room(number int64) string {
	return with(`"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d`, r.TransferPort(), number)
}

const bigRoom = 1<<63 - 1

// TestBootstrap: both engines meet in the room, whichever of the requests is first. The prefill engine answers with one token after
// the transfer, and the decode engine computes nothing of the prompt.
func TestBootstrap(t *testing.T) {
	p, d := halves(t, patient)
	alone := start(t, nil).ask(completions, split)
	for i, order := range [][]*running{{p, d}, {d, p}} {
		body := p.room(bigRoom - int64(i))
		first := order[0].later(completions, body)
		first.waits()
		second := order[1].later(completions, body)
		answers := map[*running]reply{order[0]: first.answer(), order[1]: second.answer()}

		if got := answers[d]; got.Choices[0].Text != alone.Choices[0].Text || got.Usage.Answer != 5 {
			t.Errorf("%q, want %q", got.Choices[0].Text, alone.Choices[0].Text)
		}
		if got := answers[p]; got.Usage.Answer != 1 || got.Choices[0].Reason != "length" {
			t.Errorf("the prefill engine answers %+v", got)
		}
		free(p, d)
	}
	if d.metric(computed) != "0" || d.metric(fetched) != "62" {
		t.Errorf("computed %s tokens, fetched %s", d.metric(computed), d.metric(fetched))
	}

	// Streams, and several answers, of which each has a room.
	stream := strings.Replace(p.room(7), `"max_tokens":5`, `"max_tokens":5,"stream":true`, 1)
	first, second := p.later(completions, stream), d.later(completions, stream)
	for engine, tokens := range map[*pending]int{first: 1, second: 5} {
		if status, text := engine.status(); status != http.StatusOK || strings.Count(text, `"text"`) != tokens || !strings.HasSuffix(text, "[DONE]\n\n") {
			t.Errorf("%d: %s", status, text)
		}
	}
	several := strings.Replace(p.room(7), `:7}`, `:[8,9],"n":2}`, 1)
	first, second = p.later(completions, several), d.later(completions, several)
	if a, b := first.answer(), second.answer(); a.Usage.Answer != 2 || b.Usage.Answer != 10 {
		t.Errorf("%+v, %+v", a.Usage, b.Usage)
	}
	free(p, d)
}

// TestBootstrapRefuses: an engine of one role serves no request without a room, and errors have SGLang's form.
func TestBootstrapRefuses(t *testing.T) {
	p, d := halves(t)
	for _, members := range []string{
		`"bootstrap_host":"h"`, `"bootstrap_room":null`, `"bootstrap_room":"x"`, `"bootstrap_room":1.5`, `"bootstrap_room":{}`, `"bootstrap_room":[]`,
		`"bootstrap_room":[1,2]`, `"bootstrap_room":9223372036854775808`, `"bootstrap_room":1,"bootstrap_host":7`, `"bootstrap_room":1,"bootstrap_port":"x"`,
		`"bootstrap_room":`,
	} {
		for _, r := range []*running{p, d} {
			status, text := r.post(completions, with("%s", members))
			if status != http.StatusBadRequest || !strings.HasPrefix(text, `{"object":"error","message":"`) ||
				!strings.HasSuffix(text, `","type":"BadRequest","param":null,"code":400}`) {
				t.Errorf("%s: %d %s", members, status, text)
			}
		}
	}
	if _, text := p.post(completions, split); !strings.Contains(text, "without bootstrap room id") {
		t.Error(text)
	}
	if status, text := p.post(completions, strings.Replace(split, "tiny", "other", 1)); status != http.StatusNotFound || !strings.Contains(text, `"type":"404"`) {
		t.Errorf("%d %s", status, text)
	}

	cfg := enginesim.Config{ModelName: "tiny", Model: letters{}, Vocabulary: letters{}, KVTransfer: "127.0.0.1:0", KVTransferKind: fleet.TransferBootstrap}
	if _, err := enginesim.New(cfg); err == nil || !strings.Contains(err.Error(), "need the role") {
		t.Errorf("without a role: %v", err)
	}
}

// TestBootstrapFails: a request without its partner is an error of SGLang, and no block stays in use.
func TestBootstrapFails(t *testing.T) {
	p, d := halves(t)
	body := p.room(5)
	check := func(request *pending, want string) {
		t.Helper()
		status, text := request.status()
		if status != http.StatusInternalServerError || !strings.Contains(text, want) || !strings.Contains(text, `"type":"500"`) {
			t.Errorf("%d %s, want %s", status, text, want)
		}
	}

	check(p.later(completions, body), "Prefill bootstrap failed for request rank=0 req.rid='cmpl-")
	check(p.later(completions, body), "req.bootstrap_room=5 with exception KVTransferError(bootstrap_room=5): Request 5 timed out after 0.2s in KVPoll.Bootstrapping")
	check(d.later(completions, body), "Decode transfer failed for request rank=0 decode_req.req.rid='cmpl-")
	check(d.later(completions, body), "KVTransferError(bootstrap_room=5): Request 5 timed out after 0.2s in KVPoll.WaitingForInput")
	slow := start(t, transferring(fleet.TransferBootstrap, role(fleet.Decode), func(c *enginesim.Config) { c.TransferTimeout = time.Second }))
	check(slow.later(completions, with(`"bootstrap_host":"127.0.0.1","bootstrap_port":1,"bootstrap_room":5`)),
		"Could not fetch prefill parallel info from 127.0.0.1:1 after 15 attempts")
	free(p, d, slow)

	// Another prompt in the same room, and a third request.
	first, second := p.later(completions, body), d.later(completions, strings.Replace(body, "two", "2..", 1))
	check(first, "Prefill transfer failed for request rank=0 req.rid='cmpl-")
	check(second, "Failed to get kvcache from prefill instance, it might be dead")
	free(p, d)
	p, d = halves(t, patient)
	body = p.room(6)
	first = p.later(completions, body)
	p.until("waiting", func() bool { return p.Leases() == 1 })
	check(p.later(completions, body), "another request has the room")
	second = d.later(completions, body)
	first.answer()
	second.answer()
	free(p, d)
}

// TestBootstrapClientsLeave: the other engine's request fails at once, and both free all blocks.
func TestBootstrapClientsLeave(t *testing.T) {
	for name, slow := range map[string]func(*enginesim.Config){
		"in the room":         func(*enginesim.Config) {},
		"during the prefill":  func(c *enginesim.Config) { c.Engine.Timing = hours{} },
		"during the transfer": func(c *enginesim.Config) { c.TransferBase = 1 << 60 },
	} {
		for _, prefillLeaves := range []bool{true, false} {
			t.Run(fmt.Sprint(name, prefillLeaves), func(t *testing.T) {
				p, d := halves(t, patient, slow)
				body := p.room(1)
				var leaves, stays *pending
				alone := name == "in the room"
				switch {
				case prefillLeaves:
					leaves = p.later(completions, body)
					if !alone {
						stays = d.later(completions, body)
					}
				default:
					leaves = d.later(completions, body)
					if !alone {
						stays = p.later(completions, body)
					}
				}
				leaves.waits()
				leaves.leave()

				switch {
				case stays == nil:
				case !prefillLeaves && name == "during the prefill":
					// The prefill engine computes on, as SGLang does: its client leaves, too.
					stays.waits()
					stays.leave()
				default:
					if status, text := stays.status(); status != http.StatusInternalServerError || !strings.Contains(text, "KVTransferError(bootstrap_room=1)") {
						t.Errorf("%d %s", status, text)
					}
				}
				free(p, d)
			})
		}
	}
}

// FuzzBootstrap: any bootstrap members are answered, and keep no blocks.
func FuzzBootstrap(f *testing.F) {
	for _, seed := range []string{`"bootstrap_room":1`, `"bootstrap_room":[1],"bootstrap_port":[null]`, `"bootstrap_room":-1,"bootstrap_host":["\u0000"]`, `"bootstrap_room":{`} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	fuzzHalves(f)
}
