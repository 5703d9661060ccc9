package xds

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// foreign reads the configuration of an Envoy with a style, comments and an order of its own.
func foreign(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "test", "scenario", "testdata", "foreign.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// names returns the names of the elements of a list at a path of keys and numbers.
func names(t *testing.T, root *yaml.Node, path string) (all []string) {
	t.Helper()
	n := root
	for step := range strings.SplitSeq(path, "/") {
		if _, n = stepInto(n, step); n == nil {
			t.Fatalf("nothing at %s", path)
		}
	}
	for _, element := range n.Content {
		all = append(all, scalar(element, "name"))
	}
	return all
}

// TestAddSnippetKeepsTheFile: the parts are at their places, and comments and keys of the operator stay in their order. A block may
// replace a list in brackets, so lines are compared without white space.
func TestAddSnippetKeepsTheFile(t *testing.T) {
	for _, host := range []string{"old", "new"} {
		for v := oldestVersion; v <= newestVersion; v++ {
			out, err := AddSnippet([]byte(foreign(t)), snippetSettings(v, "one"), host)
			if err != nil {
				t.Fatalf("%s: %v", v, err)
			}
			root, err := readDocument(out)
			if err != nil {
				t.Fatalf("%v in\n%s", err, out)
			}
			const manager = "static_resources/listeners/1/filter_chains/0/filters/0/typed_config"
			at := map[string]string{"old": "0", "new": "1"}[host]
			for path, want := range map[string][]string{
				"static_resources/clusters":                               {"website", "pool/one", "stator-extproc"},
				manager + "/http_filters":                                 {"health", filterName, "last"},
				manager + "/route_config/virtual_hosts/" + at + "/routes": {"one", ""},
				manager + "/route_config/virtual_hosts":                   {"old", "new"},
			} {
				if got := names(t, root, path); !slices.Equal(got, want) {
					t.Errorf("%s, %s: %s has %q, want %q", v, host, path, got, want)
				}
			}
			if n := len(names(t, root, manager+"/access_log")); n != 1 {
				t.Errorf("%s: %d access logs", v, n)
			}

			rest := string(out)
			for line := range strings.SplitSeq(foreign(t), "\n") {
				_, text, isComment := strings.Cut(line, "# ")
				if !isComment {
					continue
				}
				_, after, isThere := strings.Cut(rest, text)
				if !isThere {
					t.Errorf("%s, %s: no comment %q, or in another place:\n%s", v, host, text, out)
					break
				}
				rest = after
			}
		}
	}
}

// TestAddSnippetRefuses names what is absent, ambiguous or there already.
func TestAddSnippetRefuses(t *testing.T) {
	s := snippetSettings(newestVersion, "one")
	once, err := AddSnippet([]byte(foreign(t)), s, "new")
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(from, to string) string {
		if !strings.Contains(foreign(t), from) {
			t.Fatalf("no %q", from)
		}
		return strings.ReplaceAll(foreign(t), from, to)
	}

	for want, tt := range map[string]struct{ config, host string }{
		"--virtual-host: old, new":                         {foreign(t), ""},
		`no connection manager has a virtual host`:         {foreign(t), "other"},
		`2 virtual hosts with the name "new"`:              {replaced("name: old", "name: new"), "new"},
		"no envoy.filters.http.router":                     {replaced("http.router.v3.Router", "http.lua.v3.Lua"), "new"},
		"http_filters is no list":                          {replaced("http_filters:\n", "http_filters: 1\n          others:\n"), "new"},
		"no http_filters":                                  {replaced("http_filters:", "others:"), "new"},
		"http_filters has " + filterName + " already":      {string(once), "new"},
		"no listener in static_resources":                  {"admin: {}", ""},
		"more than one YAML document":                      {foreign(t) + "\n---\nadmin: {}\n", "new"},
		"no YAML mapping":                                  {"[]", ""},
		"read YAML":                                        {"a: [", ""},
		"route_config is an alias of YAML":                 {replaced("route_config:", "route_config: *website\n          others:"), "new"},
		"listeners is no list of mappings":                 {"static_resources: {listeners: [1]}", ""},
		"with a virtual host in its route_config; routes ": {replaced("route_config:", "others:"), ""},
	} {
		if out, err := AddSnippet([]byte(tt.config), s, tt.host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q: %.200s", err, want, out)
		}
	}
}

// FuzzAddSnippet: any file is refused or stays YAML, with the parts.
func FuzzAddSnippet(f *testing.F) {
	text, err := os.ReadFile(filepath.Join("..", "test", "scenario", "testdata", "foreign.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, config []byte) {
		out, err := AddSnippet(config, snippetSettings(newestVersion, "one"), "new")
		if err != nil {
			return
		}
		if _, err := readDocument(out); err != nil || !strings.Contains(string(out), filterName) {
			t.Errorf("%v in\n%s", err, out)
		}
	})
}
