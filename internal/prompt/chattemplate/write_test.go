package chattemplate

import (
	"runtime"
	"strings"
	"testing"
)

// TestMacrosWriteThrough renders large text through macros. Its text is not copied on the way, and the result
// equals that of macros whose text is captured.
func TestMacrosWriteThrough(t *testing.T) {
	const head = `{% macro twice(x) %}{{ x }}{% if caller is defined %}{{ caller() }}{% endif %}{{ x }}{% endmacro %}`
	text := strings.Repeat("x", 1<<20)
	vars := NewDict(1)
	vars.Set("text", StringValue(text))

	out := make([]byte, 0, 16<<20)
	for source, want := range map[string]string{
		`{{ twice(text) }}`:                                                             text + text,
		`{{ twice(x=text) }}`:                                                           text + text,
		`{{ '<' ~ twice(text) ~ '>' }}`:                                                 "<" + text + text + ">",
		`{{ twice(text) if text else 'none' }}`:                                         text + text,
		`{{ 'none' if not text else '[' ~ twice('a') ~ text }}`:                         "[aa" + text,
		`{% call twice(text) %}|{% endcall %}`:                                          text + "|" + text,
		`{{ twice('a') | upper }}{{ twice('b') + twice('c') }}`:                         "AAbbcc",
		`{% set x = twice('a') %}{{ x }}{{ twice(twice('b')) }}`:                        "aabbbb",
		`{% macro all() %}{{ varargs | join }}{% endmacro %}{{ all('a', twice('b')) }}`: "abb",
	} {
		tmpl, err := Parse(head + source)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := tmpl.Render(out[:0], Context{Vars: vars}, Limits{})
		runtime.ReadMemStats(&after)
		if err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, error %v, want %d", source, len(got), err, len(want))
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<19 {
			t.Errorf("%s: %d bytes are allocated", source, n)
		}
	}
}

// TestFailingMacrosWriteNothing renders macros that fail in the middle.
func TestFailingMacrosWriteNothing(t *testing.T) {
	for source, want := range map[string]string{
		`{% macro m() %}a{{ raise_exception('no') }}{% endmacro %}{{ m() }}`:    "no",
		`{% macro m() %}a{{ m() }}{% endmacro %}{{ 'x' ~ m() }}`:                "recursion",
		`{% macro m(a) %}a{% endmacro %}{{ m(1, 2) }}`:                          "not more than 1",
		`{% macro m(a) %}a{{ a + 1 }}{% endmacro %}{{ m() if true else m(1) }}`: "parameter 'a' was not provided",
		`{% macro m(a) %}a{% endmacro %}{{ n() }}`:                              "n is undefined",
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		out, err := tmpl.Render([]byte("kept"), Context{}, Limits{})
		if err == nil || !strings.Contains(err.Error(), want) || string(out) != "kept" {
			t.Errorf("%s: %q, error %v, want %q", source, out, err, want)
		}
	}
}
