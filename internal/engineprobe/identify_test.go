package engineprobe

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// TestIdentify: an engine is known by its pages alone.
func TestIdentify(t *testing.T) {
	const models = `{"data": [{"id": "qwen", "root": "Qwen/Qwen3-0.6B", "parent": null, "max_model_len": 4096},
		{"id": "small", "root": "Qwen/Qwen3-0.6B", "parent": null}, {"id": "poet", "root": "/adapters/poet", "parent": "qwen"}]}`
	qwen := Identity{Name: "qwen", Root: "Qwen/Qwen3-0.6B", Aliases: []string{"small"}}
	as := func(kind string, blockSize, ranks int) Identity {
		id := qwen
		id.Kind, id.BlockSize, id.Ranks = kind, blockSize, ranks
		return id
	}
	from := func(root string, id Identity) Identity {
		id.Root = root
		return id
	}

	for name, tt := range map[string]struct {
		pages map[string]string
		want  Identity
		fails string
	}{
		"vLLM with two ranks": {map[string]string{"/v1/models": models, "/metrics": "" +
			`vllm:num_requests_running{engine="0"} 0` + "\n" + `vllm:num_requests_running{engine="1"} 0` + "\n" +
			`vllm:cache_config_info{block_size="32",num_gpu_blocks="10"} 1` + "\n"}, as("vllm", 32, 2), ""},
		"SGLang": {map[string]string{"/v1/models": models, "/metrics": "sglang:num_running_reqs 0\n",
			"/server_info": `{"page_size": 64, "dp_size": 4}`}, as("sglang", 64, 4), ""},
		"SGLang's folder": {map[string]string{"/v1/models": models, "/metrics": "sglang:num_running_reqs 0\n",
			"/server_info": `{"page_size": 1, "dp_size": 1, "model_path": "/models/q"}`}, from("/models/q", as("sglang", 1, 1)), ""},
		"TensorRT-LLM": {map[string]string{"/v1/models": models, "/metrics": "[]", "/prometheus/metrics": "" +
			"trtllm_num_requests_running 0\ntrtllm_kv_cache_tokens_per_block 32\n"}, as("trtllm", 32, 1), ""},
		"llama.cpp": {map[string]string{"/v1/models": models, "/metrics": "llamacpp:requests_processing 0\n",
			"/props": `{"model_path": "/models/q.gguf"}`}, from("/models/q.gguf", as("llamacpp", 0, 1)), ""},
		"a long path": {map[string]string{"/v1/models": models, "/metrics": "llamacpp:requests_processing 0\n",
			"/props": `{"model_path": "` + strings.Repeat("x", 1200) + `"}`}, as("llamacpp", 0, 1), ""},
		"values out of range": {map[string]string{"/v1/models": models, "/metrics": "sglang:num_running_reqs 0\n",
			"/server_info": `{"page_size": 1e9, "dp_size": -1}`}, as("sglang", 0, 1), ""},
		"no metrics":    {map[string]string{"/v1/models": models}, as("exec", 0, 1), ""},
		"no model":      {map[string]string{"/v1/models": `{"data": []}`}, Identity{}, "lists no model"},
		"a long name":   {map[string]string{"/v1/models": `{"data": [{"id": "` + strings.Repeat("x", 300) + `"}]}`}, Identity{}, "lists no model"},
		"still loading": {nil, Identity{}, "status 404"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			page, ok := tt.pages[r.URL.Path]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = w.Write([]byte(page))
		}))
		got, err := Identify(context.Background(), server.Client(), strings.TrimPrefix(server.URL, "http://"))
		if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, tt.want)
		}
		server.Close()
	}
}
