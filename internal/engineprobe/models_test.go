package engineprobe

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestMaxModelLen reads the lists of engines, and answers that are none.
func TestMaxModelLen(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		want         int
		err          string
	}{
		{"vLLM with an adapter", `{"object": "list", "data": [{"id": "m", "max_model_len": 4096}, {"id": "a", "max_model_len": null}]}`, 4096, ""},
		{"llama.cpp", `{"models": [], "object": "list", "data": [{"id": "m", "meta": {"n_ctx_train": 4096}}]}`, 0, ""},
		{"no models", `{"data": []}`, 0, ""},
		{"negative", `{"data": [{"max_model_len": -1}]}`, 0, "list models: max_model_len is -1: "},
		{"too large", `{"data": [{"max_model_len": 1073741825}]}`, 0, "list models: max_model_len is 1073741825: "},
		{"another type", `{"data": [{"max_model_len": "long"}]}`, 0, "list models: json: "},
		{"another program", `hello`, 0, "list models: invalid character "},
		{"no end", `{"data": [` + strings.Repeat(" ", 2*maxAnswer), 0, "list models: unexpected end of JSON input"},
		{"an error", "", 0, "list models: status 401"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path != "/v1/models":
				http.NotFound(w, r)
			case c.answer == "":
				w.WriteHeader(http.StatusUnauthorized)
			default:
				_, _ = io.WriteString(w, c.answer)
			}
		}))
		got, err := MaxModelLen(t.Context(), srv.Client(), srv.URL)
		srv.Close()

		right := err == nil && c.err == "" || err != nil && c.err != "" && strings.HasPrefix(err.Error(), c.err)
		if got != c.want || !right {
			t.Errorf("%s: %d, %v; want %d, %s", c.name, got, err, c.want, c.err)
		}
	}

	if _, err := MaxModelLen(t.Context(), http.DefaultClient, "http://not an address"); err == nil {
		t.Error("a wrong address is no error")
	}
}
