package exchange

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stator-project/stator/internal/fleet"
)

// oracle reads bodies as engines in Python do: with json.loads over the bytes, as Starlette has it, and with the members that vLLM,
// SGLang and TensorRT-LLM read from the result. For each line of base64 it prints the members of transfers that it has found.
const oracle = `
import base64, json, sys
NAMES = ["kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
         "bootstrap_pair_key", "decode_tp_size", "routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank"]
def find(value):
    if not isinstance(value, dict):
        return []
    found = [n for n in NAMES if n in value]
    for path in (["vllm_xargs"], ["sampling_params", "extra_args"]):
        below = value
        for name in path:
            below = below.get(name) if isinstance(below, dict) else None
        if isinstance(below, dict):
            found += [".".join(path + [n]) for n in NAMES if n in below]
    return found
for line in sys.stdin:
    try:
        print(json.dumps(find(json.loads(base64.b64decode(line)))), flush=True)
    except Exception:
        print("[]", flush=True)
`

// startOracle returns a function that asks Python which members of transfers an engine would read in a body.
func startOracle(t *testing.T) func(body []byte) []string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("this test compares with Python's JSON decoder: install python3")
	}
	c := exec.CommandContext(t.Context(), python, "-c", oracle)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})

	lines := bufio.NewScanner(out)
	return func(body []byte) (found []string) {
		t.Helper()
		if _, err := fmt.Fprintln(in, base64.StdEncoding.EncodeToString(body)); err != nil || !lines.Scan() {
			t.Fatalf("the oracle has ended: %v, %v", err, lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &found); err != nil {
			t.Fatal(err)
		}
		return found
	}
}

// TestNoTransferArrives: of thousands of bodies with members of transfers, an engine in Python reads none in what the gateway
// forwards, on parsed paths and on others. The bodies are mutations of the requests that ended a real vLLM.
func TestNoTransferArrives(t *testing.T) {
	ask := startOracle(t)
	svc, _ := newService(t)
	paths := []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/inference/v1/generate", "/v1/other"}
	draw := rand.New(rand.NewPCG(1, 2))

	dangerous, forwarded := 0, 0
	for range 6000 {
		body := mutate(draw, hostile(draw))
		before := ask(body)
		if len(before) > 0 {
			dangerous++
		}
		path := paths[draw.IntN(len(paths))]
		x := svc.Begin(Origin{Source: "envoy"})
		x.OnHeaders(Head{Method: "POST", Path: path}, start)
		r := x.OnBody(body, true, start)
		if r.Answer != nil {
			if r.Answer.Status != 400 {
				t.Errorf("%s %q: status %d", path, body, r.Answer.Status)
			}
			continue
		}
		forwarded++
		sent := r.Body
		if sent == nil {
			sent = body
		}
		if found := ask(sent); len(found) > 0 {
			t.Errorf("%s %q reached the engine as %q, with %v", path, body, sent, found)
		}
		x.Recycle()
	}
	if dangerous < 2000 || forwarded < 1000 {
		t.Errorf("%d bodies were dangerous and %d were forwarded, which tests too little", dangerous, forwarded)
	}
}

// hostile returns a body with members of transfers, in one of the places from which an engine reads them.
func hostile(draw *rand.Rand) string {
	names := []string{"kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_room",
		"bootstrap_pair_key", "decode_tp_size", "routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank"}
	values := []string{`{"do_remote_prefill":true}`, `[]`, `"x"`, `null`, `1e400`, `NaN`, `{"kv_transfer_params":{}}`, `"\ud800"`}
	pick := func(of []string) string { return of[draw.IntN(len(of))] }
	member := func() string {
		return quoted(draw, pick(names)) + space(draw) + ":" + space(draw) + pick(values)
	}

	inside := []string{member(), `"a":1`, `"":{}`}
	draw.Shuffle(len(inside), func(i, j int) { inside[i], inside[j] = inside[j], inside[i] })
	object := "{" + strings.Join(inside, space(draw)+",") + space(draw) + "}"
	members := []string{`"model":"sim"`, `"prompt":"hello"`, `"messages":[{"role":"user","content":"hello"}]`, `"n":2`}
	for range 1 + draw.IntN(3) {
		members = append(members, pick([]string{
			member(),
			quoted(draw, "vllm_xargs") + ":" + object,
			quoted(draw, "sampling_params") + `:{"n":2,` + quoted(draw, "extra_args") + ":" + object + "}",
			`"metadata":` + object,
			`"` + strings.Repeat("x", 300) + `":` + object,
		}))
	}
	draw.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return space(draw) + "{" + strings.Join(members, ","+space(draw)) + "}" + space(draw)
}

// quoted returns a name as a JSON string, of which some characters are escapes.
func quoted(draw *rand.Rand, name string) string {
	var b strings.Builder
	escapes := draw.IntN(3) == 0
	for _, c := range name {
		if escapes && draw.IntN(3) == 0 {
			fmt.Fprintf(&b, [2]string{`\u%04x`, `\u%04X`}[draw.IntN(2)], c)
			continue
		}
		b.WriteRune(c)
	}
	return `"` + b.String() + `"`
}

// space returns white space, or nothing.
func space(draw *rand.Rand) string {
	return []string{"", "", "", "", " ", "\n", "\t\r", "  "}[draw.IntN(8)]
}

// mutate returns the bytes of a body: in UTF-8 as it is, in another encoding, or with a fault.
func mutate(draw *rand.Rand, body string) []byte {
	switch draw.IntN(14) {
	case 0:
		return append([]byte("\xef\xbb\xbf"), body...)
	case 1:
		return encode16(body, binary.LittleEndian, draw.IntN(2) == 0)
	case 2:
		return encode16(body, binary.BigEndian, draw.IntN(2) == 0)
	case 3:
		return encode32(body, binary.LittleEndian, draw.IntN(2) == 0)
	case 4:
		return encode32(body, binary.BigEndian, draw.IntN(2) == 0)
	case 5:
		return []byte("[" + body + "]")
	case 6:
		return []byte(body[:draw.IntN(len(body))])
	case 7:
		return []byte(body + body)
	case 8:
		at := draw.IntN(len(body))
		return slices.Concat([]byte(body[:at]), []byte{byte(draw.IntN(256))}, []byte(body[at:]))
	}
	return []byte(body)
}

func encode16(body string, order binary.AppendByteOrder, mark bool) (out []byte) {
	if mark {
		out = order.AppendUint16(out, 0xfeff)
	}
	for _, unit := range utf16.Encode([]rune(body)) {
		out = order.AppendUint16(out, unit)
	}
	return out
}

func encode32(body string, order binary.AppendByteOrder, mark bool) (out []byte) {
	if mark {
		out = order.AppendUint32(out, 0xfeff)
	}
	for _, r := range body {
		out = order.AppendUint32(out, uint32(r))
	}
	return out
}

// TestUnreadBodiesAreRefused: where a worker takes part in transfers, or clients have tenants, no request reaches a worker before
// its body was read.
func TestUnreadBodiesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name     string
		transfer fleet.Transfer
		tenants  bool
		status   int
	}{
		{"neither", fleet.NoTransfer, false, 0},
		{"transfers", fleet.TransferP2P, false, 503},
		{"tenants", fleet.NoTransfer, true, 503},
	} {
		svc, _ := newService(t, func(w *fleet.Worker) {
			w.Transfer = c.transfer
			if c.transfer != fleet.NoTransfer {
				w.TransferAt = "10.0.0.1:9000"
			}
		})
		set := *svc.Settings()
		if c.tenants {
			set.TenantHeader = "x-tenant"
		}
		svc.Reload(set)
		for _, cut := range []bool{false, true} {
			x := svc.Begin(Origin{Source: "envoy"})
			head := Head{Method: "POST", Path: "/v1/completions"}
			if !cut {
				head.Unread = "it is not sent"
			}
			r := x.OnHeaders(head, start)
			if cut {
				r = x.OnBody([]byte(`{"model":"sim","prompt":"hel`), false, start)
			}
			status := 0
			if r.Answer != nil {
				status = r.Answer.Status
			}
			if status != c.status {
				t.Errorf("%s, cut %v: status %d", c.name, cut, status)
			}
		}
	}
}
