package exchange

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func checkRefusal(t *testing.T, a *Answer, statuses ...int) {
	t.Helper()
	ok := false
	for _, s := range statuses {
		ok = ok || a.Status == s
	}
	var shape struct {
		Error struct{ Message, Type string }
	}
	if err := json.Unmarshal(a.Body, &shape); err != nil || !ok || a.Detail == "" || shape.Error.Message == "" || shape.Error.Type == "" {
		t.Fatalf("answer %d %q %s: %v", a.Status, a.Detail, a.Body, err)
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
	s, _ := newService(f)
	set := Settings{PassPaths: []string{"/v1/audio/*", "/tokenize"}}
	f.Fuzz(func(t *testing.T, path, method string) {
		classify := func(path string) target { return set.classify(method, path) }
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
			a := got.local(s, Head{Method: method, Path: path})
			if a.Status >= 400 && a.Status != 503 {
				checkRefusal(t, a, 404, 405)
			} else if !json.Valid(a.Body) {
				t.Fatalf("answer to %q is not JSON: %q", path, a.Body)
			}
		}
	})
}

func kind(t target) string {
	return fmt.Sprint(t.known, t.passed, t.endpoint, reflect.ValueOf(t.local).Pointer())
}
