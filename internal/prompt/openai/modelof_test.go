package openai_test

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// TestModelOf reads the model from bodies of APIs that are not parsed.
func TestModelOf(t *testing.T) {
	long := strings.Repeat("m", 257)
	for body, want := range map[string]string{
		`{"model":"m"}`: "m",
		` {"input":[{"model":"x"}],"model" : "a/b","n":NaN} `: "a/b",
		`{"model":"m","model":"m2"}`:                          "m2",
		`{"model":"m","model":7}`:                             "",
		`{"\u006dodel":"caf\u00e9"}`:                          "café",
		`{"model":"` + long[1:] + `"}`:                        long[1:],
		`{"model":"` + long + `"}`:                            "",
		`{"model":"` + strings.Repeat(`\u006d`, 256) + `"}`:   long[1:],
		`{"model":""}`:                                        "",
		`{"model":"m"`:                                        "",
		`{"model":"m"} x`:                                     "",
		`{"model":"\ud800"}`:                                  "",
		"{\"model\":\"\xff\"}":                                "",
		`{"x":` + strings.Repeat("[", 500):                    "",
		`["model","m"]`:                                       "",
		``:                                                    "",
		`{"x":"` + strings.Repeat("y", 1<<20) + `","model":"m"}`: "m",
	} {
		name, ok := openai.ModelOf([]byte(body))
		if name != want || ok != (want != "") {
			t.Errorf("%.60s: %.60q, %v, want %.60q", body, name, ok, want)
		}
	}
}

// TestModelOfBuildsNothing checks that a large body costs no memory.
func TestModelOfBuildsNothing(t *testing.T) {
	body := []byte(`{"input":[` + strings.Repeat(`{"text":"x\n","\n":0},`, 1<<16) + `0],"model":"m"}`)
	if n := testing.AllocsPerRun(3, func() { openai.ModelOf(body) }); n > 8 {
		t.Errorf("%v allocations", n)
	}
}
