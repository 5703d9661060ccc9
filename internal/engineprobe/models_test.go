package engineprobe

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// TestModels reads the lists of engines, and answers that are none.
func TestModels(t *testing.T) {
	const vllm = `{"object": "list", "data": [{"id": "m", "parent": null, "max_model_len": 4096},
		{"id": "b", "parent": "m", "max_model_len": null}, {"id": "a", "parent": "m", "max_model_len": null},
		{"id": "two\nlines", "parent": "m"}]}`
	for _, c := range []struct {
		name, answer string
		want         Models
		err          string
	}{
		{"vLLM with adapters", vllm, Models{4096, []string{"m"}, "\na\nb\n", 1}, ""},
		{"vLLM without an adapter", `{"data": [{"id": "m", "parent": null, "max_model_len": 50}]}`, Models{50, []string{"m"}, "\n", 0}, ""},
		{"llama.cpp", `{"models": [], "object": "list", "data": [{"id": "m", "meta": {"n_ctx_train": 4096}}]}`, Models{Names: []string{"m"}}, ""},
		{"a parent of another type", `{"data": [{"id": "m", "parent": 7}]}`, Models{Names: []string{"m"}, Adapters: "\n"}, ""},
		{"no models", `{"data": []}`, Models{}, ""},
		{"negative", `{"data": [{"max_model_len": -1}]}`, Models{}, "probe /v1/models: max_model_len is -1: "},
		{"too large", `{"data": [{"max_model_len": 1073741825}]}`, Models{}, "probe /v1/models: max_model_len is 1073741825: "},
		{"another type", `{"data": [{"max_model_len": "long"}]}`, Models{}, "probe /v1/models: json: "},
		{"another program", `hello`, Models{}, "probe /v1/models: invalid character "},
		{"no end", `{"data": [` + strings.Repeat(" ", maxAnswer), Models{}, "probe /v1/models: unexpected end of JSON input"},
		{"an error", "", Models{}, "probe /v1/models: status 401"},
	} {
		p := New("vllm", serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path != "/v1/models":
				http.NotFound(w, r)
			case c.answer == "":
				w.WriteHeader(http.StatusUnauthorized)
			default:
				_, _ = io.WriteString(w, c.answer)
			}
		}), nil)
		got, err := p.Models(t.Context())
		p.Close()

		right := err == nil && c.err == "" || err != nil && c.err != "" && strings.HasPrefix(err.Error(), c.err)
		if !reflect.DeepEqual(got, c.want) || !right {
			t.Errorf("%s: %+v, %v; want %+v, %s", c.name, got, err, c.want, c.err)
		}
	}
}
