package stream

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
)

// FuzzDecompress: a body is returned complete and within the limit, or refused with a reason, and never both.
// The result is that of the standard library, and every body compressed by the test is accepted.
func FuzzDecompress(f *testing.F) {
	f.Add([]byte(hello), "", uint16(100))
	f.Add([]byte(hello), "identity", uint16(100))
	f.Add(zip(f, []byte(hello)), "gzip", uint16(100))
	f.Add(append(zip(f, []byte(hello)), zip(f, []byte(" "))...), "gzip", uint16(100)) // two members are one body
	f.Add(append(zip(f, []byte(hello)), 'x'), " GZIP ", uint16(100))                  // and then something else
	f.Add(zip(f, make([]byte, 60_000)), "gzip", uint16(1000))                         // small, and large inside
	f.Add(zip(f, []byte(hello))[:20], "gzip", uint16(100))
	f.Add([]byte("\x1f\x8b"), "gzip", uint16(100))
	f.Add([]byte(hello), "br\xff", uint16(100))
	f.Fuzz(func(t *testing.T, body []byte, encoding string, most uint16) {
		limit := int64(most)
		plain, a := decompress(body, encoding, limit)
		if (plain != nil || len(body) == 0) == (a != nil) {
			t.Fatalf("both or neither: %d bytes, answer %v", len(plain), a)
		}
		switch {
		case a != nil:
			checkRefusal(t, a, 400, 413, 415)
		case int64(len(plain)) > limit:
			t.Fatalf("%d bytes exceed the limit of %d", len(plain), limit)
		case encoding == "":
			if !bytes.Equal(plain, body) {
				t.Fatal("changed a body without an encoding")
			}
		case !identity(encoding) && len(body) > 0:
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatalf("took what is not gzip: %v", err)
			}
			want, err := io.ReadAll(z)
			if err != nil || !bytes.Equal(plain, want) {
				t.Fatalf("%d bytes, want %d, %v", len(plain), len(want), err)
			}
		}
		again, a := decompress(zip(t, body), "gzip", int64(len(body))+100)
		if a != nil || !bytes.Equal(again, body) {
			t.Fatalf("own gzip of %d bytes came back as %d, %v", len(body), len(again), a)
		}
	})
}

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
	f.Fuzz(func(t *testing.T, path, method string) {
		got := classify(path)
		plain, _, _ := strings.Cut(path, "?")
		if kind(classify(plain)) != kind(got) || kind(classify(plain+"?a=/b")) != kind(got) {
			t.Fatalf("a query changes %q", path)
		}
		if !strings.HasSuffix(plain, "/") && kind(classify(plain+"/")) != kind(got) {
			t.Fatalf("a slash changes %q", path)
		}
		if got.known && got.local != nil {
			t.Fatalf("%q is both read and answered", path)
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
	return fmt.Sprint(t.known, t.endpoint, reflect.ValueOf(t.local).Pointer())
}
