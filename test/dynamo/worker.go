package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
)

// start starts a program whose output goes to a log in the folder of the run.
func (b *bench) start(name string, env []string, args ...string) (*process.Child, error) {
	return process.StartChild(name, filepath.Join(b.folder, name+".log"), env, b.python, args...)
}

// worker is a mocker of Dynamo with a frontend that sends requests to nothing else.
type worker struct {
	name, address    string
	events, replay   string
	mocker, frontend *process.Child
}

// startWorker starts a mocker and its frontend. A discovery folder for each pair keeps the frontends apart.
func (b *bench) startWorker(name string) (*worker, error) {
	var ports [3]string
	for i := range ports {
		port, err := loopback.Port()
		if err != nil {
			return nil, err
		}
		ports[i] = strconv.Itoa(port)
	}
	home := filepath.Join(b.folder, name)
	if err := os.MkdirAll(filepath.Join(home, "discovery"), 0o755); err != nil {
		return nil, err
	}

	env := []string{
		"HOME=" + home, "TMPDIR=" + home, "DYN_FILE_KV=" + filepath.Join(home, "discovery"), "DYN_LOG=warn", "HF_HUB_OFFLINE=1",
		"DYN_TCP_RPC_HOST=127.0.0.1", "DYN_TCP_RESPONSE_STREAM_HOST=127.0.0.1", "DYN_EVENT_PLANE_HOST=127.0.0.1",
		"DYN_SELF_HOST_METADATA=0",
	}
	planes := []string{"--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"}
	w := &worker{name: name, address: "127.0.0.1:" + ports[0], events: "tcp://127.0.0.1:" + ports[1], replay: "tcp://127.0.0.1:" + ports[2]}

	var err error
	w.mocker, err = b.start("mocker-"+name, env, append([]string{
		"-m", "dynamo.mocker", "--model-path", b.model, "--model-name", modelName, "--num-workers", "1",
		"--block-size", strconv.Itoa(blockSize), "--num-gpu-blocks-override", "4096", "--speedup-ratio", "1",
		"--zmq-kv-events-ports", ports[1], "--zmq-replay-ports", ports[2],
	}, planes...)...)
	if err != nil {
		return nil, err
	}
	w.frontend, err = b.start("frontend-"+name, env, append([]string{
		"-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", ports[0], "--router-mode", "round-robin",
	}, planes...)...)
	if err != nil {
		w.mocker.Stop()
		return nil, err
	}
	return w, nil
}

func (w *worker) stop() {
	w.frontend.Stop()
	w.mocker.Stop()
}

// await returns when the frontend serves the model.
func (w *worker) await(ctx context.Context) error {
	return w.frontend.Await(ctx, patience, func(ctx context.Context) error {
		if w.mocker.Ended() {
			return errors.New("the mocker ended; the last lines of its log:\n" + process.LastLines(w.mocker.Log))
		}
		_, err := getPage(ctx, "http://"+w.address+"/v1/models/"+url.PathEscape(modelName)+"/ready")
		return err
	})
}

// version returns the release of the frontend.
func (w *worker) version(ctx context.Context) (string, error) {
	var page struct {
		Info struct {
			Version string `json:"version"`
		} `json:"info"`
	}
	err := getJSON(ctx, "http://"+w.address+"/openapi.json", &page)
	return page.Info.Version, err
}

// getJSON reads a page of JSON into v.
func getJSON(ctx context.Context, at string, v any) error {
	text, err := getPage(ctx, at)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// getPage reads a page.
func getPage(ctx context.Context, at string) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()

	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %.300s", at, resp.StatusCode, text)
	}
	return text, err
}

// makeModel makes the folder of a tiny model without weights, which a mocker does not load.
func makeModel(vocabulary, folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(vocabulary, name))
		if err != nil {
			return "", fmt.Errorf("read the vocabulary (test/oracle/vocabularies.sh fetches it): %w", err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return "", err
		}
	}
	const config = `{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 256,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768,
"vocab_size": 151680, "bos_token_id": 151643, "eos_token_id": 151645, "torch_dtype": "bfloat16"}
`
	return folder, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644)
}
