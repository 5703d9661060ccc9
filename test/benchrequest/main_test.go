package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be the empty handler, as benchrequest starts itself as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == emptyCommand {
		if err := Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestSmoke runs the four set-ups and those of --legs with the real program and a real Envoy. That decisions were
// obeyed is proved by the run itself: it is an error otherwise.
func TestSmoke(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	stator, figures := filepath.Join(t.TempDir(), "stator"), filepath.Join(t.TempDir(), "figures.json")
	if out, err := exec.Command("go", "build", "-o", stator, "../../cmd/stator").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, progress bytes.Buffer
	err := Main(ctx, []string{"--smoke", "--legs", "--front-door", "--stator", stator, "--envoy", envoyPath(t), "--json", figures}, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	t.Logf("\n%s", &out)
	raw, err := os.ReadFile(figures)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 12 || len(r.Cells) != 12 {
		t.Fatalf("%d rows of %d cells: want 12 of 12", len(r.Rows), len(r.Cells))
	}
	for _, x := range r.Rows {
		if x.Envoy <= 0 || x.Rate <= 0 || x.P50 <= 0 || x.P99 < x.P50 {
			t.Errorf("implausible: %+v", x)
		}
		switch reused := x.Reused; x.Setup {
		case coldName, tenantsColdName, doorColdName, oneColdName, twoColdName:
			if reused != 0 {
				t.Errorf("cold requests share %g of their blocks", reused)
			}
		case oneWarmName, twoWarmName: // one worker, so that nothing is computed again
			if reused < 0.8 || reused > 0.95 {
				t.Errorf("%s: requests share %g of their blocks", x.Setup, reused)
			}
		case warmName, tenantsWarmName, doorWarmName:
			// Nine tenths at most. Workers answer at once and the router, which gets no signal of it, rather
			// has a short prompt computed again than wait for a rank.
			if reused < 0.35 || reused > 0.95 {
				t.Errorf("warm requests share %g of their blocks", reused)
			}
		}
		if !strings.Contains(out.String(), x.Setup) {
			t.Errorf("the table has no %q", x.Setup)
		}
	}
}

// envoyPath is the Envoy that `make test` installs; STATOR_TEST_ENVOY names another.
func envoyPath(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("STATOR_TEST_ENVOY"); path != "" {
		return path
	}
	found, err := filepath.Glob("../../.venv/lib/python*/site-packages/envoy/_bin/envoy")
	if err != nil || len(found) == 0 {
		t.Fatal("there is no Envoy: run `make test`, which installs one")
	}
	return found[0]
}

func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string // in the error; empty for none
	}{
		{nil, ""},
		{[]string{"--sizes", "1000, 2000", "--rounds", "2"}, ""},
		{[]string{"--sizes", "many"}, "not a number of characters"},
		{[]string{"--sizes", "10"}, "not a number of characters"},
		{[]string{"--rounds", "0"}, "at least 1"},
		{[]string{"stray"}, "unexpected argument"},
	} {
		_, err := readOptions(tc.args, &bytes.Buffer{})
		if got := fmt.Sprint(err); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(got, tc.want) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
	}
	var help bytes.Buffer
	_, _ = readOptions([]string{"-h"}, &help)
	for _, flag := range []string{"requests", "rounds", "streams", "sizes", "stator", "envoy", "traces", "profile", "json", "legs", "smoke"} {
		if !strings.Contains(help.String(), "-"+flag) {
			t.Errorf("-h does not explain --%s", flag)
		}
	}
	if strings.Contains(help.String(), emptyCommand) {
		t.Error("-h shows what is not for people")
	}
}
