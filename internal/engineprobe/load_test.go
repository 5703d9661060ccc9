package engineprobe

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestLoadAdapter sends what vLLM expects, and understands its answers.
func TestLoadAdapter(t *testing.T) {
	for _, c := range []struct {
		status       int
		answer, want string
	}{
		{http.StatusOK, "Success: LoRA adapter 'poet' added successfully.", ""},
		{http.StatusBadRequest, `{"error":{"message":"The lora adapter 'poet' has already been loaded."}}`, ""},
		{http.StatusNotFound, `{"detail":"Not Found"}`, `load adapter: status 404: "{\"detail\":\"Not Found\"}"`},
		{http.StatusBadRequest, "no\n" + strings.Repeat("x", 1<<20), `load adapter: status 400: "no\nxxx`},
	} {
		var got string
		address := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(body)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.answer)
		})
		err := LoadAdapter(t.Context(), http.DefaultClient, "vllm", address, "poet", "/adapters/po et")
		const want = `POST /v1/load_lora_adapter application/json {"lora_name":"poet","lora_path":"/adapters/po et"}`
		if got != want {
			t.Errorf("sent %s", got)
		}
		if err == nil && c.want != "" || err != nil && (c.want == "" || !strings.HasPrefix(err.Error(), c.want) || len(err.Error()) > 2*maxRefusal) {
			t.Errorf("%d %.50s: %v", c.status, c.answer, err)
		}
	}

	if LoadsAdapters("trtllm") || !LoadsAdapters("vllm") {
		t.Error("vLLM loads adapters, and TensorRT-LLM does not")
	}
	if err := LoadAdapter(t.Context(), http.DefaultClient, "vllm", "not an address", "poet", "/x"); err == nil {
		t.Error("a wrong address is no error")
	}
}

// TestCachingOfSGLang: SGLang's options have whether it caches prefixes.
func TestCachingOfSGLang(t *testing.T) {
	for _, off := range []string{"true", "false"} {
		address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"page_size": 64, "disable_radix_cache": `+off+`}`)
		})
		if o, err := New("sglang", address, nil).Options(t.Context()); err != nil || o.BlockSize != 64 || o.CachingOff != (off == "true") {
			t.Errorf("disable_radix_cache %s: %+v, %v", off, o, err)
		}
	}
}
