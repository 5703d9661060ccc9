package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestChanges compares texts of files. A change is printed as its key, and the parts that need a restart.
func TestChanges(t *testing.T) {
	const (
		one   = "models: [{name: a, path: 'builtin:sim', launch: [{engine: sim, count: 2}]}]\n"
		other = "models: [{name: a, path: 'builtin:sim', launch: [{engine: sim, count: 2}]}, {name: b, path: 'builtin:sim', launch: [{engine: sim}]}]\n"
	)
	for name, c := range map[string]struct{ before, after, want string }{
		"nothing":                     {one, one, ""},
		"a key":                       {one, one + "gateway: {maxBodyBytes: 9999}", "gateway.maxBodyBytes"},
		"a key that needs a restart":  {one, one + "prompts: {memoryBytes: -1}", "prompts.memoryBytes (routers)"},
		"a key of every part":         {one, one + "bus: {url: 'nats://h:1'}", "bus.url (every part)"},
		"a live key of such a group":  {one, strings.Replace(one, "count: 2", "count: 3", 1), "models[a].launch[0].count, models[a].launch[0].min, models[a].launch[0].max"},
		"another key of that group":   {one, strings.Replace(one, "count: 2", "count: 2, args: {seed: 1}", 1), "models[a].launch[0].args (agents)"},
		"a model more":                {one, other, "models[b]"},
		"a model less":                {other, one, "models[b]"},
		"models in another order":     {other, reversed(other), ""},
		"an alias and a whole launch": {one, "models: [{name: a, path: 'builtin:sim', aliases: [x]}]", "models[a].aliases, models[a].launch[0]"},
	} {
		var got []string
		for _, change := range Changes(parsedFile(t, c.before), parsedFile(t, c.after)) {
			text := change.Key
			if change.Restart != "" {
				text += " (" + change.Restart + ")"
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

// reversed swaps the two models of a text.
func reversed(text string) string {
	a, b, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(text, "models: ["), "]\n"), ", {name: b")
	return fmt.Sprintf("models: [{name: b%s, %s]\n", b, a)
}

func parsedFile(t *testing.T, text string) *Config {
	t.Helper()
	cfg, err := Parse([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\n" + text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return cfg
}

// TestPartsOfRestarts: each tag names parts that processes know, or everything else would be pending for ever or never.
func TestPartsOfRestarts(t *testing.T) {
	known := map[string]bool{"": true, live: true, everyPart: true, "routers": true, "agents": true, "the planner": true, "Envoy": true}
	var check func(typ reflect.Type)
	check = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			for _, part := range strings.Split(f.Tag.Get("reload"), ", ") {
				if !known[part] {
					t.Errorf("%s.%s has the tag reload:%q", typ.Name(), f.Name, part)
				}
			}
			inner := f.Type
			if inner.Kind() == reflect.Slice {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct && f.Tag.Get("yaml") != "-" {
				check(inner)
			}
		}
	}
	check(reflect.TypeFor[Config]())
}
