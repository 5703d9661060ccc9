package config

import (
	"strings"
	"testing"
)

// TestEmitters: a cache outside engines needs a name and an endpoint. Each mistake is named with its path.
func TestEmitters(t *testing.T) {
	const head = "apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels:\n- name: m\n"
	const path, workers = "  path: \"builtin:sim\"\n", "  workers: [{name: w, address: \"10.0.0.1:80\"}]\n"
	for _, c := range []struct{ text, want string }{
		{path + workers + `  emitters: [{name: a, kvEvents: "tcp://h:1"}, {name: b, kvEvents: "ipc:///s", kvReplay: "tcp://h:2", node: n1}]`, ""},
		{path + workers + `  emitters: [{name: a, kvEvents: "tcp://h:1", workers: [w, n.x], topic: t}]`, ""},
		{path + workers + `  emitters: [{name: a, kvEvents: "tcp://h:1"}, {name: a, kvEvents: "tcp://h:2"}]`, "models[0].emitters[1].name: is taken by models[0].emitters[0]"},
		{path + workers + `  emitters: [{name: A, kvEvents: "tcp://h:1"}]`, "models[0].emitters[0].name: is \"A\""},
		{path + workers + `  emitters: [{name: a}]`, "models[0].emitters[0].kvEvents: is \"\""},
		{path + workers + `  emitters: [{name: a, kvEvents: auto}]`, "models[0].emitters[0].kvEvents: is \"auto\""},
		{path + workers + `  emitters: [{name: a, kvEvents: "tcp://h:1", kvReplay: "http://h"}]`, "models[0].emitters[0].kvReplay: is"},
		{path + workers + `  emitters: [{name: a, kvEvents: "tcp://h:1", node: n1, workers: [w], topic: t}]`, "models[0].emitters[0].node: and workers are both places"},
		{path + workers + `  emitters: [{name: a, kvEvents: "tcp://h:1", workers: [w]}]`, "models[0].emitters[0].topic: is required with workers"},
		{path + workers + `  emitters: [{name: a, kvEvents: "tcp://h:1", workers: [W], topic: t}]`, "models[0].emitters[0].workers[0]: is \"W\""},
		{workers + `  emitters: [{name: a, kvEvents: "tcp://h:1"}]`, "models[0].emitters: has no effect until path is set"},
	} {
		_, err := Parse([]byte(head + c.text + "\n"))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}
