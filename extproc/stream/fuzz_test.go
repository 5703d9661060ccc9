package stream

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func checkRefusal(t *testing.T, a *answer, statuses ...int) {
	t.Helper()
	ok := false
	for _, s := range statuses {
		ok = ok || a.status == s
	}
	var shape struct {
		Error struct{ Message, Type string }
	}
	if err := json.Unmarshal(a.body, &shape); err != nil || !ok || a.detail == "" || shape.Error.Message == "" || shape.Error.Type == "" {
		t.Fatalf("answer %d %q %s: %v", a.status, a.detail, a.body, err)
	}
}

// FuzzClassify: neither a query nor a slash at the end changes the target of a path, and local pages answer
// every method.
func FuzzClassify(f *testing.F) {
	for path := range targets {
		f.Add(path, "GET")
	}
	f.Add("/v1/models/a%2fb", "GET")
	f.Add("/v1/models//?", "DELETE")
	f.Add("*", "OPTIONS")
	f.Add("", "\xff")
	w := newWorld(f)
	w.settings.PassPaths = []string{"/v1/audio/*", "/tokenize"}
	f.Fuzz(func(t *testing.T, path, method string) {
		classify := func(path string) target { return w.settings.classify(method, path) }
		got := classify(path)
		plain, _, _ := strings.Cut(path, "?")
		if kind(classify(plain)) != kind(got) || kind(classify(plain+"?a=/b")) != kind(got) {
			t.Fatalf("a query changes %q", path)
		}
		if !strings.HasSuffix(plain, "/") && kind(classify(plain+"/")) != kind(got) {
			t.Fatalf("a slash changes %q", path)
		}
		if got.known && got.local != nil || got.passed && (got.known || got.local != nil) {
			t.Fatalf("%q has more than one handling", path)
		}
		if got.local != nil {
			a := got.local(w.server, head{method: method, path: path})
			if a.status >= 400 && a.status != 503 {
				checkRefusal(t, a, 404, 405)
			} else if !json.Valid(a.body) {
				t.Fatalf("answer to %q is not JSON: %q", path, a.body)
			}
		}
	})
}

func kind(t target) string {
	return fmt.Sprint(t.known, t.passed, t.endpoint, reflect.ValueOf(t.local).Pointer())
}
