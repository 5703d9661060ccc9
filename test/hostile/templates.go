package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
)

// templateCases: chat templates of operators that never end, or that make too much of too little. A case is
// accepted if its template parses and renders.
func templateCases() []testCase {
	var list []testCase
	add := func(name, source string, accepted bool) {
		list = append(list, testCase{name: name, accepted: accepted, cpu: 3 * time.Second, bytes: 1 << 30, call: func() error {
			t, err := chattemplate.Parse(source)
			if err != nil {
				return err
			}
			message := chattemplate.NewDict(2)
			message.Set("role", chattemplate.StringValue("user"))
			message.Set("content", chattemplate.StringValue("hello"))
			vars := chattemplate.NewDict(1)
			vars.Set("messages", chattemplate.ListValue([]chattemplate.Value{chattemplate.DictValue(message)}))
			out, err := t.Render(nil, chattemplate.Context{Vars: vars, Now: time.Unix(0, 0)}, chattemplate.Limits{})
			if err == nil && len(out) > 64<<20 {
				return errors.New("the output is not bounded")
			}
			return err
		}})
	}

	add("a right one", `{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}`, true)
	for _, source := range []string{
		`{{`, `{%`, `{{ }}`, `{% if %}`, `{% if x %}`, `{% endif %}`, `{% for %}{% endfor %}`, `{% for x in %}{% endfor %}`, `{{ 1 + }}`,
		`{{ (1 }}`, `{{ "a }}`, `{{ x | unknown }}`, `{% unknown %}`, `{{ 1 if }}`, `{% set = 1 %}`, `{% macro %}{% endmacro %}`,
		`{{ ` + strings.Repeat("(", 100_000) + ` }}`, `{{ ` + strings.Repeat("not ", 100_000) + `1 }}`,
		`{{ ` + strings.Repeat("-", 100_000) + `1 }}`,
		strings.Repeat(`{% if 1 %}`, 50_000), strings.Repeat(`{% for x in [1] %}`, 20_000),
		`{{ 1 / 0 }}`, `{{ 1 % 0 }}`, `{{ raise_exception("no") }}`, `{{ raise_exception("` + strings.Repeat("x", 100_000) + `") }}`,
		`{{ messages.unknown.deeper }}`, `{{ "a" + 1 }}`, `{{ [1][5] + 1 }}`,
		`{% for i in range(10**9) %}x{% endfor %}`,
		`{% for i in range(10**4) %}{% for j in range(10**4) %}{% for k in range(10**4) %}x{% endfor %}{% endfor %}{% endfor %}`,
		`{{ "x" * 10**10 }}`, `{{ ("x" * 10**7) * 100 }}`, `{{ [0] * 10**10 }}`, `{{ 2 ** 10000000 }}`,
		`{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}`, `{{ "%1000000000d" | format(1) }}`, `{{ "{:>1000000000}".format(1) }}`,
		`{{ "x" | center(10**9) }}`, `{{ "x".ljust(10**9) }}`, `{{ ("x" * 10**6) | replace("x", "y" * 1000) }}`,
		`{{ ("a " * 10**6).split() * 100 }}`, `{{ ("a" * 10**6) | list | join("b" * 1000) }}`,
		`{% set ns = namespace(s="x") %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`,
		`{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l }}`,
		`{% set ns = namespace(d={}) %}{% for i in range(60) %}{% set ns.d = {"a": ns.d, "b": ns.d} %}{% endfor %}{{ ns.d | tojson }}`,
	} {
		add(fmt.Sprintf("%.60q", source), source, false)
	}
	for _, source := range []string{
		``, `text`, `{{ messages }}`, `{{ undefined_name }}`, `{{ messages | tojson }}`, `{# a comment #}`, `{% raw %}{{ }}{% endraw %}`,
		strings.Repeat(`{% set x = 1 %}`, 20_000), strings.Repeat(`{{ 1 }}`, 20_000), `{{ "` + strings.Repeat("é", 1<<20) + `" }}`,
		`{% for i in range(100000) %}x{% endfor %}`, `{{ 10 ** 10 ** 10 }}`, `{{ "x" | indent(10**9) }}`,
		`{{ ("9" * 5000000) | int }}`, `{{ "a,b".replace("", "x" * 10**6) }}`,
	} {
		add(fmt.Sprintf("%.60q", source), source, true)
	}
	return list
}
