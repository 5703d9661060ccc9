package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// wrongSetting is a mistake in the settings of one model's engines or workers. Each engine is a line of flags of a simulated engine, and each
// worker a line of the configuration, in which A0, P0, E0 and R0 are the address, the port, the event and the replay socket of the first engine.
type wrongSetting struct {
	name    string
	model   string // further settings of the model
	engines []string
	workers []string
	// finding is the check, the subject and a part of the sentence that `stator doctor` prints. metric has the name, the labels and the value
	// that show the same; the value of less is subtracted.
	finding string
	metric  string
	less    string
	labels  []string
	is      func(float64) bool
}

const rightWorker = `{name: %s, engine: vllm, address: "A0", kvEvents: "E0", kvReplay: "R0"}`

// wrongSettings are the mistakes of docs/operations.md. other and template are models with another tokenizer and another template.
func wrongSettings(other, template, nowhere string) []wrongSetting {
	one, many := func(v float64) bool { return v == 1 }, func(v float64) bool { return v >= 2000 }
	const reported, promised = "stator_feed_reported_cached_tokens_total", "stator_feed_promised_cached_tokens_total"
	publishes := "--kv-events E0 --kv-replay R0"
	return []wrongSetting{
		{
			name: "port", engines: []string{publishes}, workers: []string{`{name: port, address: "A0", kvEvents: "` + nowhere + `"}`},
			finding: "event-socket worker port: its event socket " + nowhere + " of rank 0 cannot be connected to",
			metric:  "stator_sockets_source_connected", labels: []string{`worker="port"`}, is: func(v float64) bool { return v == 0 },
		},
		{
			name: "ranks", engines: []string{publishes}, workers: []string{`{name: ranks, address: "A0", kvEvents: "E0", ranks: 2}`},
			finding: "event-socket worker ranks: its event socket", metric: "stator_sockets_source_connected",
			labels: []string{`worker="ranks"`, `rank="1"`}, is: func(v float64) bool { return v == 0 },
		},
		{
			name: "blocks", model: "blockSize: 16", engines: []string{publishes + " --block-size 32"}, workers: []string{fmt.Sprintf(rightWorker, "blocks")},
			finding: "block-size worker blocks: ", metric: "stator_extproc_other_block_size_workers", is: one,
		},
		{
			name: "tokenizer", engines: []string{publishes + " --model-dir " + other}, workers: []string{fmt.Sprintf(rightWorker, "tokenizer")},
			finding: "tokenizer worker tokenizer: the text ", metric: reported, less: promised, labels: []string{`worker="tokenizer"`}, is: many,
		},
		{
			name: "template", engines: []string{publishes + " --model-dir " + template}, workers: []string{fmt.Sprintf(rightWorker, "template")},
			finding: "tokenizer worker template: a chat has", metric: reported, less: promised, labels: []string{`worker="template"`}, is: many,
		},
		{
			name: "swapped", engines: []string{publishes + " --model port"}, workers: []string{fmt.Sprintf(rightWorker, "swapped")},
			finding: "served-name worker swapped: it serves port and not swapped", metric: "stator_sockets_wrong_setting_workers",
			labels: []string{`setting="model"`}, is: one,
		},
		{
			name: "seed", engines: []string{publishes, "--kv-events E1 --kv-replay R1"},
			workers: []string{fmt.Sprintf(rightWorker, "seed"), strings.ReplaceAll(fmt.Sprintf(rightWorker, "seed-1"), "0", "1")},
			finding: "engine-hashes worker seed-1: its hash of the same block differs from that of seed",
			metric:  "stator_sockets_wrong_setting_workers", labels: []string{`setting="hashes"`}, is: one,
		},
		{
			name: "caching", engines: []string{publishes + " --no-prefix-caching"}, workers: []string{fmt.Sprintf(rightWorker, "caching")},
			finding: "prefix-caching worker caching: ", metric: "stator_sockets_wrong_setting_workers",
			labels: []string{`setting="prefix_caching"`}, is: one,
		},
		{
			name: "twice", engines: []string{publishes},
			workers: []string{fmt.Sprintf(rightWorker, "twice"), `{name: twice-1, address: "localhost:P0"}`},
			finding: "same-address worker twice-1: it has the address of worker twice", metric: "stator_sockets_wrong_setting_workers",
			labels: []string{`setting="address"`}, is: func(v float64) bool { return v == 2 },
		},
		{
			name: "off", engines: []string{""}, workers: []string{`{name: off, address: "A0", kvEvents: auto}`},
			finding: `events-off worker off: its kvEvents is "auto", and its engine publishes none`, metric: "stator_feed_ranks",
			labels: []string{`state="none"`}, is: func(v float64) bool { return v >= 1 },
		},
	}
}

// TestWrongSettingsAreNamed makes mistakes on purpose, each with a model of its own. The doctor names each one in a sentence, and a metric
// shows it.
func TestWrongSettingsAreNamed(t *testing.T) {
	t.Parallel()
	all := wrongSettings(otherModel(t), otherTemplate(t), "tcp://"+freeAddress(t))
	config := "index: {driftTokens: 2000}\nmodels:\n"
	var engines [][2]string // address and model
	for i := range all {
		w := &all[i]
		var places []string
		for j := range w.engines {
			at := freeAddress(t)
			engines = append(engines, [2]string{at, w.name})
			_, port, _ := strings.Cut(at, ":")
			places = append(places, fmt.Sprint("A", j), at, fmt.Sprint("P", j), port, fmt.Sprint("E", j), "tcp://"+freeAddress(t), fmt.Sprint("R", j), "tcp://"+freeAddress(t))
			flags := strings.Fields(strings.NewReplacer(places...).Replace(w.engines[j]))
			start(t, append([]string{"sim", "--name", w.name, "--model", w.name, "--listen-address", at}, flags...)...)
		}
		config += fmt.Sprintf("- name: %s\n  path: \"builtin:sim\"\n", w.name)
		if w.model != "" {
			config += "  " + w.model + "\n"
		}
		config += "  workers:\n"
		for _, worker := range w.workers {
			config += "  - " + strings.NewReplacer(places...).Replace(worker) + "\n"
		}
	}
	file := configFile(t, config)
	g := up(t, "--config", file)

	for _, e := range engines { // each engine publishes the blocks of a prompt
		sendNumbered(t, "http://"+e[0], e[1], 0)
	}
	for i := range all {
		w, begun, last := &all[i], time.Now(), -1
		eventually(t, fmt.Sprintf("%s shows the mistake %s", w.metric, w.name), func() error {
			// The same prompt comes again after 10 s. The router expects those that it has sent for 5 s, whatever the engine reports.
			if n := int(time.Since(begun) / (250 * time.Millisecond)); w.less != "" && n > last {
				last = n
				sendNumbered(t, g.url, w.name, n%40)
			}
			v := g.metric(w.metric, w.labels...)
			if w.less != "" {
				v -= g.metric(w.less, w.labels...)
			}
			if !w.is(v) {
				return fmt.Errorf("it is %g", v)
			}
			return nil
		})
	}
	eventually(t, "the doctor names each mistake", func() error {
		sentences, err := doctorSentences("--config", file, "--admin-address", g.admin, "--wait", "1s", "--json")
		if err != nil {
			return err
		}
		for i := range all {
			if !slices.ContainsFunc(sentences, func(s string) bool { return strings.HasPrefix(s, all[i].finding) }) {
				return fmt.Errorf("no sentence %q in\n%s", all[i].finding, strings.Join(sentences, "\n"))
			}
		}
		return nil
	})
}

// sendNumbered sends a prompt of which each number makes another one. A model whose engine serves another answers with an error.
func sendNumbered(t *testing.T, to, model string, number int) {
	t.Helper()
	prompt := strings.Repeat(fmt.Sprintf("The words of number %d, again and again. ", number), 40)
	body, err := json.Marshal(map[string]any{"model": model, "max_tokens": 1, "messages": []message{{"user", prompt}}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post(to+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// doctorSentences runs `stator doctor` and returns the check, the subject and the sentence of each finding.
func doctorSentences(args ...string) (sentences []string, err error) {
	out, err := exec.Command(binary, append([]string{"doctor"}, args...)...).Output()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return nil, err
	}
	var report struct {
		Findings []struct{ Check, Subject, What string }
	}
	err = json.Unmarshal(out, &report)
	for _, f := range report.Findings {
		sentences = append(sentences, f.Check+" "+f.Subject+": "+f.What)
	}
	return sentences, err
}

// otherTemplate is the simulator's model with another chat template: texts have the same tokens, and chats have others.
func otherTemplate(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("../../internal/models/sim")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "chat_template.jinja")
	template, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append([]byte("This is another template. "), template...), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}
