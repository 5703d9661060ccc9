package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
)

// answer is the response of every worker to a client's request: one token.
const answer = `{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"sim","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":"Yes"},"finish_reason":"length"}],` +
	`"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`

// prefillAnswer is the response of a prefill worker with vLLM, without its log probabilities.
const prefillAnswer = `{"id":"chatcmpl-0","object":"chat.completion","created":1795266334,"model":"sim","choices":[{"index":0,` +
	`"message":{"role":"assistant","content":"Yes"},"finish_reason":"length"}],"usage":{"prompt_tokens":100,"total_tokens":101,` +
	`"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],` +
	`"remote_engine_id":"391a91ef-9043-471a-87ac-74c553542be7",` +
	`"remote_request_id":"cmpl-13c5e6f6-2a09-41e6-8a4d-97b70bd160f4-0-bb0afc05","remote_host":"127.0.0.1","remote_port":25600,` +
	`"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":100,"remote_blocks_expiry_time":null,"transfer_mode":"pull",` +
	`"remote_prefill_cached_tokens":0},"ec_transfer_params":null,"metrics":null}`

// answerAll answers every request of a client.
func answerAll([]byte) string { return answer }

// answerPrefill answers the requests by which a prefill worker is to compute a prompt and keep its KV cache; empty for others.
func answerPrefill(body []byte) string {
	if !bytes.Contains(body, []byte(`"do_remote_decode":true`)) {
		return ""
	}
	return prefillAnswer
}

// workers are HTTP servers that read a request and answer it at once.
type workers struct {
	// answer returns the answer to a body; empty if the worker has none.
	answer    func(body []byte) string
	bodies    sync.Pool // of *bytes.Buffer
	addresses []string
	served    atomic.Int64
	servers   []*http.Server
	running   sync.WaitGroup
}

func startWorkers(n int, answer func(body []byte) string) (*workers, error) {
	w := &workers{answer: answer}
	w.bodies.New = func() any { return new(bytes.Buffer) }
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			w.stop()
			return nil, err
		}
		s := &http.Server{Handler: http.HandlerFunc(w.serve)}
		w.addresses = append(w.addresses, ln.Addr().String())
		w.servers = append(w.servers, s)
		w.running.Go(func() {
			if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				panic(err) // a listener on loopback does not fail by itself
			}
		})
	}

	return w, nil
}

func (w *workers) serve(rw http.ResponseWriter, r *http.Request) {
	body := w.bodies.Get().(*bytes.Buffer)
	defer w.bodies.Put(body)
	body.Reset()
	if _, err := body.ReadFrom(r.Body); err != nil {
		return
	}

	text := answer
	if r.Method == http.MethodPost { // routers also ask a worker for its models, now and then
		text = w.answer(body.Bytes())
		w.served.Add(1)
	}
	if text == "" {
		http.Error(rw, "this is not a request for a prefill worker", http.StatusBadRequest)
		return
	}
	rw.Header()["Content-Type"] = []string{"application/json"}
	rw.Header()["Content-Length"] = []string{strconv.Itoa(len(text))}
	_, _ = io.WriteString(rw, text)
}

func (w *workers) stop() {
	for _, s := range w.servers {
		_ = s.Close()
	}
	w.running.Wait()
}
