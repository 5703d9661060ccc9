package chattemplate

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// TestExpensiveOperationsCostSteps renders templates that repeat an operation on a large value a thousand times. Each
// operation costs steps in proportion to its work, so that no template ends.
func TestExpensiveOperationsCostSteps(t *testing.T) {
	vars := NewDict(2)
	vars.Set("big", StringValue(strings.Repeat("ab ", 1<<17)))
	items := make([]Value, 20_000)
	for i := range items {
		items[i] = IntValue(i)
	}
	vars.Set("l", ListValue(items))

	for _, e := range []string{
		"big | title | length", "big | int", "big | float", "'zz' in big", "big.count('zz')", "big.find('zz')",
		"big | trim", "big | escape", "big | length", "big[-1]", "big[5:7]", "big | truncate(5)", "big.isalnum()", "big.split()", "big | lower",
		"(big.find)('zz')", "big is lower", "[big] | map('length') | list", "[big] | select('lower') | list",
		"l | max", "-1 in l", "l == l | list", "l.count(-1)", "l | unique", "l + l", "l * 2", "l | string",
		"2 ** 60000", "2 ** 60000 // 7", "(3 ** 30000) / (7 ** 20000)",
	} {
		tmpl, err := Parse(fmt.Sprintf(`{%% for i in range(1000) %%}{%% set x = %s %%}{%% endfor %%}`, e))
		if err != nil {
			t.Fatal(err)
		}
		_, err = tmpl.Render(nil, Context{Vars: vars}, Limits{Steps: 1 << 17})
		if err == nil || !strings.Contains(err.Error(), "too many steps") {
			t.Errorf("%s: error %v, want too many steps", e, err)
		}
	}
}

// TestHugeListsAreNotMade renders templates that ask for lists of a billion elements.
func TestHugeListsAreNotMade(t *testing.T) {
	for _, e := range []string{"[1] * 10 ** 8", "('9' * 5000000) | int"} {
		tmpl, err := Parse("{{ " + e + " }}")
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = tmpl.Render(nil, Context{}, Limits{})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
			t.Errorf("%s: %d MiB are allocated", e, n>>20)
		}
	}
}

// TestSharedElementsAreBounded prints and compares lists whose text would have 2^100 elements.
func TestSharedElementsAreBounded(t *testing.T) {
	const twice = `{% set ns = namespace(x=['x' * 65536], y=['x' * 65536], z=(1,)) %}{% for i in range(100) %}
		{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% set ns.z = (ns.z, ns.z) %}{% endfor %}`
	for e, want := range map[string]string{
		"ns.x == ns.x":       "True",
		"ns.x == ns.y":       "False",
		"ns.x | tojson":      "too large",
		"ns.x | string":      "more than",
		"{ns.z: 1} | length": "unhashable",
	} {
		tmpl, err := Parse(twice + "{{ " + e + " }}")
		if err != nil {
			t.Fatal(err)
		}
		out, err := tmpl.Render(nil, Context{}, Limits{})
		if got := fmt.Sprint(strings.TrimSpace(string(out)), err); !strings.Contains(got, want) {
			t.Errorf("%s: %.100s, want %s", e, got, want)
		}
	}
}

// TestManyNamesParse parses a template that sets 50,000 names. It ends only if the work does not grow with the square
// of the names.
func TestManyNamesParse(t *testing.T) {
	source := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "{%% set a%d = b%d %%}", i, i)
		}
		return b.String()
	}
	tmpl, err := Parse(source(50_000))
	if err != nil || tmpl.slots != 50_000 {
		t.Errorf("%d names, error %v", tmpl.slots, err)
	}
}
