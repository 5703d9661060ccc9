package stream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/serving"
	"github.com/stator-project/stator/test/doors"
)

const transferOf = `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r",` +
	`"remote_host":"10.0.0.9","remote_port":5600,"tp_size":1}`

// TestPrefillInEachMode: Envoy gets a longer timeout before the request to the prefill worker, if its mode has one, and then the pick with
// the changed body, whole or in pieces.
func TestPrefillInEachMode(t *testing.T) {
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"kv_transfer_params":`+transferOf+`}`)
	}))
	defer p.Close()
	long := `{"model":"sim","prompt":"` + strings.Repeat("x", 100_000) + `"}`
	want := strings.TrimSuffix(long, "}") + `,"kv_transfer_params":` + transferOf + "}"

	for _, mode := range []filterv3.ProcessingMode_BodySendMode{filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_FULL_DUPLEX_STREAMED} {
		w, client := served(t)
		for name, at := range map[string]string{"d": "10.0.0.7:80", "p": strings.TrimPrefix(p.URL, "http://")} {
			role := map[string]fleet.Role{"d": fleet.Decode, "p": fleet.Prefill}[name]
			if _, err := w.Fleet.Put(fleet.Worker{Name: name, Model: "sim", Role: role, Address: at, Ranks: 1, State: fleet.Ready, Transfer: fleet.TransferNixl}); err != nil {
				t.Fatal(err)
			}
		}

		models := map[string]*serving.Config{"sim": {Prompt: doors.Letters{}, BlockSize: 4, Prefill: serving.PrefillRemote}}
		if err := w.Router.SetModels(models); err != nil {
			t.Fatal(err)
		}

		replies := all(t, client, first(mode), bodyMessage(true, long))
		var body string
		var picked *extprocv3.ProcessingResponse
		if mode == filterv3.ProcessingMode_BUFFERED {
			timeout := replies[1].GetOverrideMessageTimeout().AsDuration()
			if len(replies) != 3 || timeout <= route.PrefillTimeout || timeout > route.PrefillTimeout+envoyPatience {
				t.Fatalf("%d replies, a timeout of %s", len(replies), timeout)
			}
			picked = replies[2]
			body = string(picked.GetRequestBody().GetResponse().GetBodyMutation().GetBody())
		} else {
			picked = replies[0]
			body = echo(t, replies[1:], false)
		}
		if body != want {
			t.Errorf("%s: a body of %d bytes, want %d", mode, len(body), len(want))
		}
		facts := picked.GetDynamicMetadata().GetFields()["stator"].GetStructValue().GetFields()
		if d, ok := w.Router.Explain(facts["decision"].GetStringValue()); !ok || d.Worker != "d" || !w.Router.End(d.ID, time.Now()) {
			t.Errorf("%s: %v", mode, d)
		}
		if n := w.Router.Bookings(); n != 0 {
			t.Errorf("%s: %d bookings are left", mode, n)
		}
		w.idle(t)
		if n := w.bodyBytes(); n != 0 {
			t.Errorf("%s: %d bytes of bodies are left", mode, n)
		}
	}
}
