package handoff

import (
	"strings"
	"testing"
)

// TestModelOfEnvelope reads the model from bodies of APIs that are not parsed.
func TestModelOfEnvelope(t *testing.T) {
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
		e, err := Read([]byte(body), Responses, nil)
		if err != nil && e.Model != "" || e.Model != want {
			t.Errorf("%.60s: %.60q, %v, want %.60q", body, e.Model, err, want)
		}
	}
}

// TestEnvelopeBuildsNothing checks that a large body costs no memory.
func TestEnvelopeBuildsNothing(t *testing.T) {
	body := []byte(`{"input":[` + strings.Repeat(`{"text":"x\n","\n":0},`, 1<<16) + `0],"model":"m"}`)
	if n := testing.AllocsPerRun(3, func() { _, _ = Read(body, Responses, nil) }); n > 8 {
		t.Errorf("%v allocations", n)
	}
}
