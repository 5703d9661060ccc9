package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
)

// Ratios are compared within a round, so that a busy round does not count against anyone.
func TestRatiosArePaired(t *testing.T) {
	r := &report{}
	for round, load := range []float64{1, 3, 1.5} {
		r.cells = append(r.cells,
			cell{Setup: coldName, Chars: 1000, Round: round, figures: figures{Total: 260 * load}},
			cell{Setup: emptyName, Chars: 1000, Round: round, figures: figures{Total: 200 * load}})
	}
	r.finish()
	if len(r.Rows) != 2 || r.Rows[0].Setup != emptyName || r.Rows[1].Ratio != 1.3 || r.Rows[1].Total != 390 {
		t.Errorf("rows: %+v", r.Rows)
	}
	if len(r.Goals) != 1 || r.Goals[0].Limit != 1.35 || r.Goals[0].Stand != 1.3 {
		t.Errorf("goals: %+v", r.Goals)
	}
}

// TestLegsArePaired: ext_proc's CPU with two legs is compared with that of one leg in the same round, and at the same size.
func TestLegsArePaired(t *testing.T) {
	r := &report{}
	for round, load := range []float64{1, 3, 2} {
		r.cells = append(r.cells,
			cell{Setup: oneColdName, Chars: 1000, Round: round, figures: figures{ExtProc: 100 * load}},
			cell{Setup: oneColdName, Chars: 4000, Round: round, figures: figures{ExtProc: 900 * load}},
			cell{Setup: oneWarmName, Chars: 1000, Round: round, figures: figures{ExtProc: 1}},
			cell{Setup: twoColdName, Chars: 1000, Round: round, figures: figures{ExtProc: 160 * load}})
	}
	r.finish()
	want := []legsRatio{{Setup: twoColdName, Chars: 1000, One: 200, Two: 320, Ratio: 1.6, Lowest: 1.6, Highest: 1.6, Limit: 1.5}}
	if !slices.Equal(r.Legs, want) {
		t.Errorf("%+v, want %+v", r.Legs, want)
	}
}

// The plain Envoy has the routes and the pool of the others, and nothing that asks extproc.
func TestPlainBootstrap(t *testing.T) {
	cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels: [{name: sim, path: 'builtin:sim', workers: [{name: a, address: '127.0.0.1:9'}]}]"))
	if err != nil {
		t.Fatal(err)
	}
	boot, err := plainBootstrap(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"override_host", "earlyHeaderMutation", "localReplyConfig", "retryPolicy", "requestBodyBufferLimit", `"portValue":9`} {
		if !strings.Contains(strings.ReplaceAll(string(boot), ": ", ":"), want) {
			t.Errorf("there is no %s", want)
		}
	}
	for _, not := range []string{"ext_proc.v3", "extproc", "accessLog\"", "ads\":"} {
		if strings.Contains(string(boot), not) {
			t.Errorf("there is %s", not)
		}
	}
}

// TestDuplexBootstrap: the filter has another mode, and the routers are there.
func TestDuplexBootstrap(t *testing.T) {
	cfg, err := config.Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels: [{name: sim, path: 'builtin:sim', workers: [{name: a, address: '127.0.0.1:9'}]}]"))
	if err != nil {
		t.Fatal(err)
	}
	boot, err := duplexBootstrap(cfg, "unix:///router")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FULL_DUPLEX_STREAMED", `"requestTrailerMode":"SEND"`, "accessLog", `"path":"/router"`} {
		if !strings.Contains(strings.ReplaceAll(string(boot), ": ", ":"), want) {
			t.Errorf("there is no %s", want)
		}
	}
}

func TestWitnesses(t *testing.T) {
	for _, tc := range []struct {
		name string
		w    witness
		seen counts
		ok   bool
	}{
		{"all picked", ourWitness{}, counts{asPicked: 5}, true},
		{"one not reported", ourWitness{}, counts{asPicked: 4}, false},
		{"one unpicked", ourWitness{}, counts{asPicked: 5, "unpicked": 1}, false},
		{"one misdirected", ourWitness{}, counts{asPicked: 5, "misdirected": 1}, false},
		{"all transferred", legsWitness{}, counts{asPicked: 5, prefillKey("transferred"): 5}, true},
		{"one computed by the decode worker", legsWitness{}, counts{asPicked: 5, prefillKey("transferred"): 4, prefillKey("failed"): 1}, false},
		{"one attempt too many", legsWitness{}, counts{asPicked: 5, prefillKey("transferred"): 5, prefillKey("unusable"): 1}, false},
		{"empty saw all", emptyWitness{}, counts{"headers": 5, "bodies": 5, "entries": 5}, true},
		{"empty missed a body", emptyWitness{}, counts{"headers": 5, "bodies": 4, "entries": 5}, false},
	} {
		if err := tc.w.prove(tc.seen, 5); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
