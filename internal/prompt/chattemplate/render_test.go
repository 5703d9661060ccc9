package chattemplate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// context holds the variables of the scenarios, as JSON.
const context = `{"d":{"a":1,"b":[1,2,{"c":"x"}],"items":"shadow","z":null,"name":"N"},"l":[3,1,2],"s":"Hello, Wörld","e":"","n":7,
"f":2.5,"t":true,"big":12345678901234567890,"msgs":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo",
"tool_calls":[{"function":{"name":"f","arguments":{"k":[1,2]}}}]},{"role":"tool","content":"r"}],"words":["b","A","c","a"],
"nested":{"x":{"y":{"z":1}}}}`

func contextOf(t testing.TB, src string) Context {
	t.Helper()
	v, err := FromJSON([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return Context{Vars: v.Dict(), Now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
}

// TestScenarios runs the scenarios in testdata. The commands are:
//
//	render  render the input; the output stands between brackets, an error is "error: …"
func TestScenarios(t *testing.T) {
	ctx := contextOf(t, context)
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			tmpl, err := Parse(d.Input)
			if err != nil {
				return fmt.Sprintf("error: parse: %v\n", err)
			}
			out, err := tmpl.Render(nil, ctx, Limits{})
			if err != nil {
				return fmt.Sprintf("error: %v\n", err)
			}
			return fmt.Sprintf("[%s]\n", out)
		})
	})
}

// TestRealTemplates checks that templates of real models parse and render. `make oracle-template` compares the text with Python's.
func TestRealTemplates(t *testing.T) {
	files, _ := filepath.Glob("../../../../shared/templates/*.jinja")
	if len(files) == 0 {
		t.Skip("the folder shared/templates beside the repository is absent: no real templates to render")
	}
	ctx := contextOf(t, `{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true,"bos_token":"<s>","eos_token":"</s>"}`)
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := Parse(string(src))
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(f), err)
			continue
		}
		if out, err := tmpl.Render(nil, ctx, Limits{}); err != nil || !strings.Contains(string(out), "hi") {
			t.Errorf("%s: %q, %v", filepath.Base(f), out, err)
		}
	}
}

// TestRenderIsBounded checks that limits stop a template that would run forever or use all memory.
func TestRenderIsBounded(t *testing.T) {
	for _, src := range []string{
		`{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}`,
		`{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}`,
		`{{ "aaaaaaaaaa" * 99999999999 }}`, `{{ [1,2,3] * 99999999999 }}`, `{{ 10 ** (10 ** 10) }}`,
		`{% set ns = namespace(s="ab") %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
		`{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}`,
		`{{ "%99999999999d" % 1 }}`, `{{ "a".ljust(2147483647) }}`, `{{ ("a" * 9999999).replace("a", "b" * 999) }}`,
		`{% for a in range(99999) %}{{ "x" * 9999 }}{% endfor %}`,
		`{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}`, "{{ " + strings.Repeat("(", 10_000), strings.Repeat("{% if 1 %}", 10_000),
		"{{ " + strings.Repeat("not ", 10_000) + "1 }}", "{{ " + strings.Repeat("-", 10_000) + "1 }}", "{{ a" + strings.Repeat(".a", 10_000) + " }}",
	} {
		tmpl, err := Parse(src)
		if err == nil {
			_, err = tmpl.Render(nil, Context{}, Limits{Steps: 1 << 20, Output: 1 << 20})
		}
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%.60q: %v", src, err)
		}
	}
}

// TestRenderKeepsOutputOnError checks that dst has its old content after an error.
func TestRenderKeepsOutputOnError(t *testing.T) {
	tmpl, err := Parse("text {{ raise_exception('no') }}")
	if err != nil {
		t.Fatal(err)
	}
	out, err := tmpl.Render([]byte("before"), Context{}, Limits{})
	if string(out) != "before" || err == nil || err.Error() != "no (line 1)" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestTemplatesThatWantParts checks which templates iterate over the parts of a message's content.
func TestTemplatesThatWantParts(t *testing.T) {
	for src, want := range map[string]bool{
		`{% for m in messages %}{{ m.content }}{% endfor %}`:                                                                            false,
		`{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}`:                                                       true,
		`{% for m in messages[1:] %}{% for c in m['content'] | list %}{% endfor %}{% endfor %}`:                                         true,
		`{% set l = messages %}{% for m in l %}{% if m.content is string %}{% for c in m.content %}{% endfor %}{% endif %}{% endfor %}`: true,
		`{% for m in others %}{% for c in m.content %}{% endfor %}{% endfor %}`:                                                         false,
		`{% macro w(x, y) %}{% for c in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ w(1, m.content) }}{% endfor %}`:         true,
		`{% macro w(x, y) %}{% for c in y %}{% endfor %}{% endmacro %}{% for m in messages %}{{ w(y=m['content']) }}{% endfor %}`:       true,
		`{% macro w(x, y) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ w(1, m.content) }}{% endfor %}`:         false,
		`{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}`:                            true,
		`{% macro w(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ m.content }}{% endfor %}`:      false,
		`{% for a, b in messages %}{% endfor %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}`:                 false,
	} {
		tmpl, err := Parse(src)
		if err != nil {
			t.Fatal(err)
		}
		if tmpl.WantsParts() != want {
			t.Errorf("%s: %t", src, !want)
		}
	}
}
