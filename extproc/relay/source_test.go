package relay

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// transferable is the answer of a prefill worker of vLLM's NixlConnector.
const transferable = `{"choices":[{"finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,` +
	`"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":25600,"tp_size":1}}`

// TestSourceOfATransferDies: a prefill worker dies after its answer, and the decode worker waits for the prompt without an end. Another
// attempt, without the parameters of the dead process, answers the client. So it is after a stream's headers, before its first event.
func TestSourceOfATransferDies(t *testing.T) {
	for _, transfer := range []fleet.Transfer{fleet.TransferP2P, fleet.TransferNixl} {
		for _, isStream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a stream: %t", transfer, isStream), func(t *testing.T) {
				w := newWorld(t)
				w.transfer = transfer
				var waits atomic.Bool
				w.engine("p", fleet.Prefill, answers(http.StatusOK, transferable))
				w.engine("d", fleet.Decode, func(out http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					isFetching := bytes.Contains(body, []byte("remote_prefiller")) || bytes.Contains(body, []byte("remote_engine_id"))
					if isStream {
						out.Header().Set("content-type", "text/event-stream")
						_ = http.NewResponseController(out).Flush()
					}
					if !isFetching {
						_, _ = io.WriteString(out, "data: computed\n\n")
						return
					}
					waits.Store(true)
					<-r.Context().Done()
				})

				answer := make(chan string, 1)
				go func() {
					_, text := w.post(completion)
					answer <- text
				}()
				testkit.Eventually(t, "the decode worker waits", waits.Load)
				for _, worker := range w.fleet.Snapshot().Workers {
					if worker.Name == "p" {
						dead := *worker
						dead.State = fleet.Down
						if _, err := w.fleet.Put(dead); err != nil {
							t.Fatal(err)
						}
					}
				}
				if got := <-answer; got != "data: computed\n\n" {
					t.Errorf("the client has got %q", got)
				}
				if n := w.count(prefillFailed); n != 1 {
					t.Errorf("%g prefills failed: want 1", n)
				}
				w.assertNothingBooked()
			})
		}
	}
}
