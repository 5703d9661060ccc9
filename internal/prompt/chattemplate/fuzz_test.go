package chattemplate

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// FuzzRender checks that any template renders any context to text or to an [*Error], within the limits. A second
// render has the same result.
func FuzzRender(f *testing.F) {
	scenarios, err := os.ReadFile("testdata/scenarios/python.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range strings.Split(string(scenarios), "render\n")[1:] {
		source, _, _ := strings.Cut(c, "\n----")
		f.Add(source, context)
	}
	f.Fuzz(func(t *testing.T, source, vars string) {
		ctx := Context{}
		if v, err := FromJSON([]byte(vars)); err == nil {
			ctx.Vars = v.Dict()
		}
		tmpl, err := Parse(source)
		if (tmpl == nil) == (err == nil) {
			t.Fatalf("template %v and error %v", tmpl, err)
		}
		var e *Error
		if err != nil {
			if !errors.As(err, &e) {
				t.Errorf("error of type %T", err)
			}
			return
		}
		lim := Limits{Steps: 100_000, Output: 100_000}
		first, err := tmpl.Render(nil, ctx, lim)
		if err != nil && !errors.As(err, &e) {
			t.Errorf("error of type %T", err)
		}
		if len(first) > lim.Output {
			t.Errorf("%d bytes of output, at most %d", len(first), lim.Output)
		}
		second, again := tmpl.Render(nil, ctx, lim)
		if string(second) != string(first) || (err == nil) != (again == nil) {
			t.Errorf("%q (%v), then %q (%v)", first, err, second, again)
		}
	})
}

// FuzzFromJSON checks that all valid JSON is read, and that the value survives writing and reading.
func FuzzFromJSON(f *testing.F) {
	for _, s := range []string{context, `[1,1.0,-0,1e5,"\u00e9\ud83d\ude00\n",null,true,{}]`, `{"a":1,"a":2}`, `[1,]`, `{"a"}`, `"`, `1 2`, `-`, `12345678901234567890`, `1e999`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		v, err := FromJSON(src)
		if deep := strings.Count(string(src), "[")+strings.Count(string(src), "{") > maxNesting || len(src) > 4000; (err == nil) != json.Valid(src) && !deep {
			t.Fatalf("%q: error %v, valid %t", src, err, json.Valid(src))
		}
		if err != nil {
			return
		}
		text, err := appendJSON(nil, v, &plainStyle, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(text) {
			if strings.Contains(string(text), "Infinity") {
				return // Python writes a number out of range as a word
			}
			t.Fatalf("%q is written as %q", src, text)
		}
		again, err := FromJSON(text)
		if err != nil || !equal(v, again) {
			t.Errorf("%q is written as %q, which reads differently (%v)", src, text, err)
		}
	})
}
