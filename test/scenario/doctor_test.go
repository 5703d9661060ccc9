package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDoctorFindsEachFault runs four engines that are named in the configuration. The first one is
// healthy, the others have one fault each, and the doctor finds them.
func TestDoctorFindsEachFault(t *testing.T) {
	t.Parallel()
	sims := map[string]string{}
	config := ""
	for name, args := range map[string][]string{
		"healthy":    nil,
		"blocks":     {"--block-size", "18"}, // no size of at least 4 tokens divides it and the others
		"noevents":   nil,                    // the router reads a socket that no process binds
		"othermodel": {"--model-dir", otherModel(t)},
	} {
		at, events, replay := freeAddress(t), "tcp://"+freeAddress(t), "tcp://"+freeAddress(t)
		start(t, append([]string{"sim", "--name", name, "--listen-address", at, "--kv-events", events, "--kv-replay", replay}, args...)...)
		switch name {
		case "noevents":
			events, replay = "tcp://"+freeAddress(t), ""
		case "healthy":
			events, replay = "auto", "" // the router asks the engine
		}
		sims[name] = at
		config += fmt.Sprintf("  - {name: %s, address: %q, engine: sim, kvEvents: %q, kvReplay: %q}\n", name, at, events, replay)
	}
	for _, at := range sims {
		eventually(t, "the engine is ready", func() error { _, err := get("http://" + at + "/health"); return err })
	}
	file := configFile(t, "models:\n- name: sim\n  path: \"builtin:sim\"\n  workers:\n"+config)
	g := up(t, "--config", file)
	for _, at := range sims { // each engine computes a prompt and publishes its blocks
		prompt := strings.Repeat("The same words again and again. ", 40)
		body, _ := json.Marshal(map[string]any{"model": "sim", "prompt": prompt, "max_tokens": 1})
		resp, err := http.Post("http://"+at+"/v1/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}

	want := []string{"block-size worker blocks", "event-socket worker noevents", "tokenizer worker othermodel"}
	if code := awaitDoctor(t, want, "--config", file, "--admin-address", g.admin, "--wait", "1s", "--json"); code != 1 {
		t.Errorf("exit status %d", code)
	}
}

// TestDoctorFindsNothing looks at a fleet that `stator up` started: it has no fault.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	file := configFile(t, "models: [{name: sim, path: \"builtin:sim\", launch: [{engine: sim, count: 2}]}]\n")
	g := up(t, "--config", file)
	for range 3 {
		g.chat([]message{{"user", strings.Repeat("Say it again, please. ", 30)}}, 4)
	}
	if code := awaitDoctor(t, nil, "--config", file, "--admin-address", g.admin, "--wait", "500ms", "--json"); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// TestDoctorFindsWhatBreaksPrefixes sends the turns of a conversation whose system prompt begins with the time. The doctor names the place
// and its cost: the tokens that the engine computes more than in the same conversation without that line.
func TestDoctorFindsWhatBreaksPrefixes(t *testing.T) {
	t.Parallel()
	file := configFile(t, "models: [{name: sim, path: \"builtin:sim\", launch: [{engine: sim}]}]\n")
	system := strings.Repeat("The agent follows each of these many rules.\n", 60) + "And this long last line, which is the longest of all of its lines.\n"
	computed := map[bool]int{}
	for _, changing := range []bool{false, true} {
		g := up(t, "--config", file)
		for i := range 12 {
			line := "Hello.\n"
			if changing {
				line = fmt.Sprintf("The time is 20:%02d.\n", i)
			}
			talk := []message{{"system", line + system}}
			for turn := range i {
				talk = append(talk, message{"user", fmt.Sprint("question ", turn)}, message{"assistant", "an answer"})
			}
			r := g.chat(append(talk, message{"user", "go on"}), 1)
			computed[changing] += r.usage.PromptTokens - r.usage.Details.CachedTokens
		}

		flags := []string{"--config", file, "--admin-address", g.admin, "--wait", "500ms", "--json"}
		if !changing {
			if code := awaitDoctor(t, nil, flags...); code != 0 {
				t.Errorf("exit status %d", code)
			}
			continue
		}
		awaitDoctor(t, []string{"prefix-breaker model sim"}, flags...)
		place := []string{`model="sim"`, `message="0"`, `role="system"`, `character="12"`, `kind="time"`}
		lost, more := g.metric("stator_route_prefix_breaker_tokens_total", place...), float64(computed[true]-computed[false])
		if lost < 0.75*more || lost > more { // the first two requests count as none
			t.Errorf("the router counts %v tokens, and the engine computed %v more", lost, more)
		}
	}
}

// TestDoctorAsksAgents runs an agent with an engine that never starts. The doctor finds it by the agent in the
// router's process, and by the address of an agent that it is given; an address without an agent is a finding too.
func TestDoctorAsksAgents(t *testing.T) {
	t.Parallel()
	file := configFile(t, "models: [{name: sim, path: \"builtin:sim\", launch: [{engine: sim}, "+
		"{engine: exec, command: [sh, -c, \"echo out of memory; exit 1\"]}]}]\n")
	g := up(t, "--config", file)
	eventually(t, "the engine has failed three times", func() error {
		var engines []struct {
			Worker   string
			Failures int
		}
		g.page("/debug/agent", &engines)
		for _, e := range engines {
			if e.Failures >= 3 {
				return nil
			}
		}
		return fmt.Errorf("engines: %+v", engines)
	})

	noAgent := freeAddress(t)
	_, found := doctor(t, "--config", file, "--admin-address", g.admin, "--agent", noAgent, "--wait", "500ms", "--json")
	for _, want := range []string{"agent agent " + noAgent, "engine-restarts worker sim-1"} {
		if !slices.Contains(found, want) {
			t.Errorf("found %q, which has no %q", found, want)
		}
	}
}

// TestStatusOfAFleet looks at a fleet of real processes, and again when one of its engines cannot start.
func TestStatusOfAFleet(t *testing.T) {
	t.Parallel()
	healthy := "{engine: sim, count: 2}"
	for _, c := range []struct {
		launch string
		code   int
		wrong  string
	}{
		{healthy, 0, "Nothing is wrong."},
		{healthy + ", {engine: exec, command: [sh, -c, \"echo out of memory; exit 1\"]}", 1, "pool sim aggregated: 2 of the 3 workers"},
	} {
		g := up(t, "--config", configFile(t, "models: [{name: sim, path: \"builtin:sim\", launch: ["+c.launch+"]}]\n"))
		g.chat([]message{{"user", strings.Repeat("Show me the state. ", 30)}}, 4)
		want := []string{
			`router, control plane, planner, agent +\S+ +(ready|degraded) +connected +in force +2 of `,
			`(?m)^\S+ +1\.\d+\.\d+ +SYNCED +SYNCED +SYNCED +SYNCED +access_log$`,
			`(?m)^sim-0 +sim +aggregated +ready +ready +connected +exact +0 `, `(?m)^sim-1 +sim +aggregated +ready +ready +connected +exact +0 `,
			`(?m)^sim +aggregated +\d +2 `, regexp.QuoteMeta(c.wrong),
		}
		eventually(t, "stator status shows the fleet", func() error {
			out, err := exec.Command(binary, "status", "--admin-address", g.admin).Output()
			code := 0
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				code = exit.ExitCode()
			}
			for _, row := range want {
				if !regexp.MustCompile(row).Match(out) {
					return fmt.Errorf("no line matches %s in\n%s", row, out)
				}
			}
			if code != c.code {
				return fmt.Errorf("the exit status is %d, want %d", code, c.code)
			}
			return nil
		})
		topOnce(t, g)
		collectAndServe(t, g)
	}
}

// topOnce prints the lists of `stator top`. The request of the fleet is a decision, counted for its tenant and its outcome.
func topOnce(t *testing.T, g *gateway) {
	t.Helper()
	eventually(t, "stator top shows the fleet", func() error {
		out, err := exec.Command(binary, "top", "--once", "--admin-address", g.admin).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for _, row := range []string{
			`(?m)^Ranks: 2 of \d ready, 2 caches exact. Requests: 0 booked, 0 queued$`,
			`(?m)^sim-[01] +ready +exact +0 +0 +0 +\d+% +0% +- +\S+ +\S+ +sim +aggregated `,
			`(?m)^TENANT .*\n- +- +1 +0 +- +0$`, `(?m)^TIME .*\n\S+ +\S+ +picked +sim-[01] +\d+ +0% `, `(?m)^picked +1 +100% `,
		} {
			if !regexp.MustCompile(row).Match(out) {
				return fmt.Errorf("no line matches %s in\n%s", row, out)
			}
		}
		return nil
	})
}

// collectAndServe gathers a fleet into a file and serves the file, at which the newest decision is explained as at the fleet.
func collectAndServe(t *testing.T, g *gateway) {
	t.Helper()
	file, at := filepath.Join(t.TempDir(), "bundle.tar.gz"), freeAddress(t)
	out, err := exec.Command(binary, "collect", "--admin-address", g.admin, "--out", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "/debug/fleet.json\n") || !strings.Contains(string(out), "written to ") {
		t.Fatalf("stator collect: %v\n%s", err, out)
	}
	start(t, "collect", "--serve", file, "--admin-address", at)
	want, err := exec.Command(binary, "explain", "--admin-address", g.admin).Output()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file explains the newest decision", func() error {
		got, err := exec.Command(binary, "explain", "--admin-address", at).Output()
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(want), strings.SplitAfterN(string(got), "\n", 2)[0]) {
			return fmt.Errorf("it has\n%s, want\n%s", got, want)
		}
		return nil
	})
}

// awaitDoctor runs `stator doctor` until it has these findings alone, and returns its exit status. On a busy machine it may first find engines
// that are late.
func awaitDoctor(t *testing.T, want []string, args ...string) (code int) {
	t.Helper()
	eventually(t, "the doctor finds what is expected", func() error {
		var found []string
		code, found = doctor(t, args...)
		if !slices.Equal(found, want) {
			return fmt.Errorf("it found %q, want %q", found, want)
		}
		return nil
	})
	return code
}

// doctor runs `stator doctor` and returns its exit status and its findings: check and subject, sorted.
func doctor(t *testing.T, args ...string) (code int, found []string) {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"doctor"}, args...)...)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Findings []struct{ Check, Subject, What string }
	}
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatalf("doctor printed %s%s: %v", out, &log, err)
	}
	for _, f := range d.Findings {
		found = append(found, f.Check+" "+f.Subject)
		t.Logf("%s: %s", f.Subject, f.What)
	}
	slices.Sort(found)
	return code, found
}

// otherModel is the simulator's model with fewer merges: the same text becomes other tokens.
func otherModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json"} {
		raw, err := os.ReadFile(filepath.Join("../../internal/models/sim", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "tokenizer.json" {
			var file map[string]any
			if err := json.Unmarshal(raw, &file); err != nil {
				t.Fatal(err)
			}
			model := file["model"].(map[string]any)
			model["merges"] = model["merges"].([]any)[:1000]
			if raw, err = json.Marshal(file); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
