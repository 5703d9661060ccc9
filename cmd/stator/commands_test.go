package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/kubeapi"
)

// runCommand runs a command line with a text as its standard input, and returns its output.
func runCommand(t *testing.T, in string, args ...string) (out string, err error) {
	t.Helper()

	var printed, complaints bytes.Buffer
	err = Main(t.Context(), environment{in: strings.NewReader(in), out: &printed, err: &complaints, hard: context.Background()}, args)
	return printed.String(), err
}

// TestExplainPrintsThePageOfTheRouter asks an admin port for a decision, or for the newest one, as text and as
// JSON. An answer of the router that is an error is the error of the command.
func TestExplainPrintsThePageOfTheRouter(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/gone") {
			http.Error(w, "decision gone is too old", http.StatusNotFound)
			return
		}
		fmt.Fprint(w, r.URL.RequestURI())
	}))
	defer srv.Close()
	address := strings.TrimPrefix(srv.URL, "http://")

	for args, want := range map[string]string{
		"":           "/debug/decisions/latest",
		"d1":         "/debug/decisions/d1",
		"d/1 --json": "/debug/decisions/d%2F1?format=json",
		"--json":     "/debug/decisions/latest?format=json",
	} {
		out, err := runCommand(t, "", append([]string{"explain", "--admin-address", address}, strings.Fields(args)...)...)
		if err != nil || out != want {
			t.Errorf("explain %s: %v, %q, want %q", args, err, out, want)
		}
	}

	out, err := runCommand(t, "", "explain", "--admin-address", address, "gone")
	if err == nil || err.Error() != "decision gone is too old" || out != "" {
		t.Errorf("a refusal: %v, %q", err, out)
	}
	_, err = runCommand(t, "", "explain", "--admin-address", "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "is it running, and is 127.0.0.1:1 its --admin-address?") {
		t.Errorf("no router: %v", err)
	}
	if _, err := runCommand(t, "", "explain", "--admin-address", "a b"); err == nil {
		t.Error("an address with a space is accepted")
	}
}

// TestExplainFindsTheRouter asks several routers: a decision is found at the one that made it, and without an id the newest of all. A
// router that is down hides no decision of another one, and the error names each that was asked.
func TestExplainFindsTheRouter(t *testing.T) {
	router := func(id string, at time.Time) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked := path.Base(r.URL.Path)
			switch {
			case id == "":
				http.Error(w, "there are no decisions yet", http.StatusNotFound)
			case asked != id && asked != "latest":
				http.Error(w, "there is no decision", http.StatusNotFound)
			case r.URL.Query().Get("format") == "json":
				fmt.Fprintf(w, `{"id": %q, "at": %q}`, id, at.Format(time.RFC3339))
			default:
				fmt.Fprint(w, "decision "+id)
			}
		}))
		t.Cleanup(srv.Close)
		return strings.TrimPrefix(srv.URL, "http://")
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	list := strings.Join([]string{"127.0.0.1:1", router("old", day), router("new", day.Add(time.Hour)), router("", day)}, ",")

	for args, want := range map[string]string{
		"old": "decision old", "new": "decision new", "": "decision new", "--json": `{"id": "new", "at": "2026-03-01T01:00:00Z"}`,
	} {
		out, err := runCommand(t, "", append([]string{"explain", "--admin-address", list}, strings.Fields(args)...)...)
		if err != nil || out != want {
			t.Errorf("explain %s: %v, %q, want %q", args, err, out, want)
		}
	}
	_, err := runCommand(t, "", "explain", "gone", "--admin-address", list)
	if err == nil || strings.Count(err.Error(), "there is no decision") != 2 || !strings.Contains(err.Error(), "127.0.0.1:1: ") {
		t.Errorf("an unknown id: %v", err)
	}
}

// TestPromptCommandsAnswerLines gives tokenize, render and hash a line each, and checks their errors.
func TestPromptCommandsAnswerLines(t *testing.T) {
	template := writeFile(t, "chat.jinja", "{% for m in messages %}[{{ m.content }}]{% endfor %}")
	broken := writeFile(t, "broken.jinja", "{% for %}")
	const chat = `{"model": "sim", "messages": [{"role": "user", "content": "hi"}]}` + "\n"

	for _, c := range []struct {
		line, in, out, fails string
	}{
		{"tokenize", `{"text": "hello"}` + "\n", `{"ids":[`, ""},
		{"tokenize --model-dir absent", "", "", "model absent does not exist"},
		{"render", chat, "hi", ""},
		{"render --template " + template, chat, `{"prompt":"[hi]"}`, ""},
		{"render --raw --template " + template, `{"messages": [{"content": "a"}, {"content": "b"}]}` + "\n", `{"prompt":"[a][b]"}`, ""},
		{"render --template absent", "", "", "read template: open absent"},
		{"render --template " + broken, "", "", broken + ": "},
		{"hash --block-size 2", `{"tokens": [1, 2, 3]}` + "\n", `"sequence_hashes":[`, ""},
		{"hash --block-size 0", "", "", "usage"},
	} {
		out, err := runCommand(t, c.in, strings.Fields(c.line)...)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v, want %q", c.line, err, c.fails)
			}
			continue
		}
		if err != nil || !strings.Contains(out, c.out) {
			t.Errorf("%s: %v, %s", c.line, err, out)
		}
	}
}

// TestUpFlagsChangeTheFirstModel applies flags of `stator up` to the configuration: a flag that was not given
// changes nothing, and the configuration with the flags is checked again.
func TestUpFlagsChangeTheFirstModel(t *testing.T) {
	folder := t.TempDir()
	read := func(line string) (*config.Config, error) {
		flags, err := readUpFlags(environment{out: &bytes.Buffer{}, err: &bytes.Buffer{}}, strings.Fields(line))
		if err != nil {
			return nil, err
		}
		return flags.config()
	}

	plain, err := read("")
	if err != nil || plain.Models[0].Name != "sim" || plain.Models[0].Launch[0].Count != 2 || len(plain.Models[0].Launch[0].Args) == 0 {
		t.Fatalf("%v, %+v", err, plain)
	}
	changed, err := read("--listen-address 127.0.0.1:9 --policy random --workers 3 --decision-log d.jsonl --engine llamacpp " +
		"--model-dir " + folder + "/big.gguf")
	if err != nil {
		t.Fatal(err)
	}
	first := changed.Models[0]
	if changed.Gateway.Listen != "127.0.0.1:9" || changed.Decisions.Log != "d.jsonl" || first.Router.Policy != "random" {
		t.Errorf("%+v", changed)
	}
	if first.Name != "big" || first.Path != filepath.Join(folder, "big.gguf") {
		t.Errorf("model %s of %s", first.Name, first.Path)
	}
	if remote, err := read("--model-dir hf:acme/tiny@v1"); err != nil || remote.Models[0].Name != "tiny" || remote.Models[0].Path != "hf:acme/tiny@v1" {
		t.Errorf("%v, %+v", err, remote)
	}
	// The arguments of the default launch are for another engine.
	if l := first.Launch[0]; l.Engine != "llamacpp" || l.Count != 3 || len(l.Args) != 0 {
		t.Errorf("launch %+v", l)
	}

	split, err := read("--prefill 1 --decode 3")
	if err != nil || len(split.Models[0].Launch) != 2 {
		t.Fatalf("%v, %+v", err, split)
	}
	if l := split.Models[0].Launch; l[0].Role != "decode" || l[0].Count != 3 || l[1].Role != "prefill" || l[1].Count != 1 {
		t.Errorf("launch %+v", l)
	}
	if _, err := read("--prefill 1 --decode 1 --engine llamacpp"); err == nil || !strings.Contains(err.Error(), "engine llamacpp cannot have") {
		t.Errorf("an engine without transfers: %v", err)
	}

	for _, flags := range []string{"--prefill 1", "--decode 2", "--prefill 1 --decode -1", "--prefill 1 --decode 1 --workers 2"} {
		if _, err := read(flags); err == nil {
			t.Errorf("%s is accepted", flags)
		}
	}

	file := writeFile(t, "fleet.yaml", remoteFleet)
	remote, err := read("--config " + file + " --workers 4 --model other")
	if err != nil || remote.Models[0].Name != "other" || len(remote.Models[0].Launch) != 1 || remote.Models[0].Launch[0].Engine != "sim" {
		t.Errorf("%v, %+v", err, remote)
	}
	if _, err := read("--policy best"); err == nil || !strings.Contains(err.Error(), "with these flags: ") {
		t.Errorf("an unknown policy: %v", err)
	}
}

// TestConsolePrintsProgress checks the lines that a person sees while `stator up` starts and stops: the models with
// their workers, parts that are ready or waited for, and requests to try.
func TestConsolePrintsProgress(t *testing.T) {
	cfg, err := config.Parse([]byte(strings.Replace(remoteFleet, "127.0.0.1:0", "0.0.0.0:8080", 1)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Models[0].Launch = []config.Launch{{Engine: "sim", Count: 2}}
	cfg.Models = append(cfg.Models, config.Model{Name: "vectors", Workers: make([]config.Worker, 1)})
	var out bytes.Buffer
	c := newConsole(&out)
	c.title(cfg)
	c.ready("bus", "in this process")
	c.waiting("workers", errors.New("1 of 2 ready"))
	c.invite(cfg, "127.0.0.1:9999")
	c.stopping(context.Background())
	c.stopped()

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	c.stopping(ended) // the second Ctrl-C: there is nothing more to wait for

	for want, times := range map[string]int{
		"stator up: gateway http://0.0.0.0:8080\n":                         1,
		"  model sim (builtin:sim), policy kv: 2 × sim, 1 from the file\n": 1,
		"  model vectors (prompts are not read), ":                         1,
		"in this process\n":                                     1,
		"workers  still waiting: 1 of 2 ready\n":                1,
		"curl -s http://127.0.0.1:8080/v1/chat/completions":     1,
		"  bin/stator explain --admin-address 127.0.0.1:9999\n": 1,
		"\nstopping: running requests may end first":            1,
		"stopped\n": 1,
	} {
		if n := strings.Count(out.String(), want); n != times {
			t.Errorf("%q is printed %d times in\n%s", want, n, &out)
		}
	}
}

// TestDoctorReadsTheConfigurationOfItsPod: without --config the doctor reads the file that the chart names in its pods, which may have no
// models.
func TestDoctorReadsTheConfigurationOfItsPod(t *testing.T) {
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	wrong, right := file("wrong.yaml", "gateway: {lisen: x}\n"), file("right.yaml", "")
	cluster := []string{"--kubernetes", "-n", "llm", "--kubernetes-api", kubeapi.New(t).URL}
	for _, c := range []struct {
		variable string
		args     []string
		want     string
	}{
		{wrong, cluster, "wrong.yaml"},
		{wrong, []string{"--admin-address", "127.0.0.1:1"}, "wrong.yaml"},
		{wrong, append([]string{"--config", right}, cluster...), "1 finding"},
		{right, cluster, "1 finding"},
		{right, []string{"--admin-address", "127.0.0.1:1"}, "1 finding"},
		{"", cluster, "1 finding"},
	} {
		t.Setenv(configVariable, c.variable)
		out, err := runCommand(t, "", append([]string{"doctor"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %q: %v, want %s; it prints %s", c.variable, c.args, err, c.want, out)
		}
	}
}
