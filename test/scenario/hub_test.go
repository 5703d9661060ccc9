package scenario

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/test/testkit"
)

// TestModelFromHub: while the hub of a model is away, its requests are served by load, and the router is ready and says why it is
// degraded. When the hub is back, prompts are found in caches. A router that starts again without the hub uses its cache.
func TestModelFromHub(t *testing.T) {
	hub := testkit.NewHub(t, testkit.Contents(t, models.Sim()))
	var away atomic.Bool
	away.Store(true)
	hub.Before = func(w http.ResponseWriter, _ *http.Request) bool {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return away.Load()
	}
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_HOME", t.TempDir())

	at, events, replay := freeAddress(t), freeAddress(t), freeAddress(t)
	start(t, "sim", "--name", "a", "--listen-address", at, "--kv-events", "tcp://"+events, "--kv-replay", "tcp://"+replay, "--log-level", "warn")
	p := startPartsFor(t, partsSettings{models: fmt.Sprintf(`
models:
- name: sim
  path: "hf:%s"
  workers: [{name: a, engine: sim, address: %q, kvEvents: "tcp://%s", kvReplay: "tcp://%s"}]
`, testkit.HubModel, at, events, replay)})

	eventually(t, "/readyz shows the reason", func() error {
		text, err := p.read("/readyz")
		if err == nil && !strings.Contains(text, "status 503") {
			err = errors.New(text)
		}
		return err
	})
	chat := []message{{"user", strings.Repeat("What is in the cache? ", 40)}}
	if d := p.decision(p.chat(chat, 4).decision); d.Blocks != 0 {
		t.Errorf("without files: %+v", d)
	}
	if _, found := doctor(t, "--config", p.file, "--admin-address", p.admin, "--wait", "500ms", "--json"); !strings.Contains(fmt.Sprint(found), "model-files model sim") {
		t.Errorf("the doctor found %v", found)
	}

	away.Store(false)
	awaitFound := func() {
		t.Helper()
		eventually(t, "the prompt is found in the cache", func() error {
			if d := p.decision(p.chat(chat, 4).decision); d.Blocks == 0 || d.Overlap < d.Blocks-1 {
				return fmt.Errorf("%d of %d blocks", d.Overlap, d.Blocks)
			}
			return nil
		})
	}
	awaitFound()
	eventually(t, "nothing is degraded", func() error {
		text, err := p.read("/readyz")
		if err == nil && (strings.Contains(text, "degraded") || p.metric("stator_extproc_model_without_files") != 0) {
			err = errors.New(text)
		}
		return err
	})

	away.Store(true)
	p.extproc.stop()
	p.startExtProc()
	p.await()
	awaitFound()
	eventually(t, "the log warns of the hub", func() error {
		if !strings.Contains(p.extproc.out.String(), "those of the cache are used") {
			return errNotYet
		}
		return nil
	})
	p.assertNothingBooked()
}
