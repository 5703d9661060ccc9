package main

import (
	"fmt"
	"slices"
	"strings"
)

// hintMembers are the members of nvext that the router reads.
var hintMembers = []member{
	{"router.overlap_score_weight", []string{"number", "decimal"}},
	{"router.temperature", []string{"number", "decimal"}},
	{"router.allowed_workers", []string{"array"}},
	{"router.worker", []string{"string"}},
	{"router.dp_rank", []string{"number"}},
	{"router.class", []string{"string"}},
	{"router.ttft_deadline_ms", []string{"number"}},
	{"agent_hints.priority", []string{"number", "decimal"}},
	{"agent_hints.strict_priority", []string{"number"}},
	{"agent_hints.osl", []string{"number"}},
	{"routing_constraints.required_taints", []string{"array"}},
	{"routing_constraints.preferred_taints", []string{"object"}},
}

// withHint returns a chat with one hint.
func withHint(path, value string) string {
	group, name, _ := strings.Cut(path, ".")
	return chatWith("nvext", fmt.Sprintf(`{%q:{%q:%s}}`, group, name, value))
}

// hintCases: routing hints of bodies and headers, from a client that is trusted.
func hintCases() []testCase {
	var list []testCase
	for _, m := range hintMembers {
		for _, k := range kinds {
			if !slices.Contains(m.ok, k.kind) {
				list = append(list, post(m.name+" is a "+k.kind, chatPath, withHint(m.name, k.value), 400, "nvext."+m.name))
			}
		}
	}

	long := strings.Repeat("x", 100_000)
	many := func(n int, element string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
	}
	list = append(list,
		post("a group that is a number", chatPath, chatWith("nvext", `{"router":1}`), 400, "nvext.router"),
		post("a negative weight", chatPath, withHint("router.overlap_score_weight", `-1`), 400, "nvext.router.overlap_score_weight"),
		post("an infinite weight", chatPath, withHint("router.overlap_score_weight", `1e999`), 400, "nvext.router.overlap_score_weight"),
		post("a long name of a worker", chatPath, withHint("router.worker", `"`+long+`"`), 400, "nvext.router.worker"),
		post("a worker that is not there", chatPath, withHint("router.worker", `"w9"`), 400, "nvext.router.worker"),
		post("no allowed worker", chatPath, withHint("router.allowed_workers", `[]`), 400,
			"nvext.router.allowed_workers"),
		post("10,000 allowed workers", chatPath, withHint("router.allowed_workers", many(10_000, `"w0"`)), 400,
			"nvext.router.allowed_workers"),
		post("allowed workers that are not there", chatPath, withHint("router.allowed_workers", `["w9"]`), 400,
			"nvext.router.allowed_workers"),
		post("a rank that is not there", chatPath, withHint("router.dp_rank", `5`), 400, "nvext.router.dp_rank"),
		post("a negative rank", chatPath, withHint("router.dp_rank", `-1`), 400, "nvext.router.dp_rank"),
		post("a deadline of 0", chatPath, withHint("router.ttft_deadline_ms", `0`), 400, "nvext.router.ttft_deadline_ms"),
		post("the highest strict priority, and one more", chatPath, withHint("agent_hints.strict_priority", `1048577`), 400,
			"nvext.agent_hints.strict_priority"),
		post("the longest answer", chatPath, withHint("agent_hints.osl", `2147483647`), 200, ""),
		post("a longer answer", chatPath, withHint("agent_hints.osl", `2147483648`), 400, "nvext.agent_hints.osl"),
		post("an unknown hint", chatPath, withHint("router.unknown", many(1000, `{"a":1}`)), 200, ""),
		post("a taint without a name", chatPath, withHint("routing_constraints.required_taints", `[""]`), 400,
			"nvext.routing_constraints.required_taints"),
		post("a long taint", chatPath, withHint("routing_constraints.required_taints", `["`+long+`"]`), 400,
			"nvext.routing_constraints.required_taints"),
		post("a preferred taint with a long name", chatPath, withHint("routing_constraints.preferred_taints", `{"`+long+`":"high"}`),
			400, "*"),
		post("10,000 taints", chatPath, withHint("routing_constraints.required_taints", many(10_000, `"a"`)), 400,
			"nvext.routing_constraints.required_taints"),
		postLarge("a taint of 15 MB", chatPath, func() []byte {
			return []byte(withHint("routing_constraints.preferred_taints", `{"`+strings.Repeat("y", 15<<20)+`":1}`))
		}, 400, "nvext.routing_constraints.preferred_taints"),
	)

	header := func(name, key, value string, status int, param string) testCase {
		c := post(name, chatPath, chatWith("seed", "1"), status, param)
		c.headers = []string{key, value}
		return c
	}
	return append(list,
		header("a deadline that is a word", "x-stator-deadline", "soon", 400, "x-stator-deadline"),
		header("a negative deadline", "x-stator-deadline", "-5s", 400, "x-stator-deadline"),
		header("a rank that is a word", "x-stator-rank", "first", 400, "x-stator-rank"),
		header("a priority that is no number", "x-stator-priority", "NaN", 400, "x-stator-priority"),
		header("an infinite priority", "x-stator-priority", "Inf", 400, "x-stator-priority"),
		header("a strict priority out of bounds", "x-stator-strict-priority", "-1", 400, "x-stator-strict-priority"),
		header("a long class", "x-stator-class", strings.Repeat("c", 5000), 400, "x-stator-class"),
		header("a long tenant", "x-stator-tenant", strings.Repeat("t", 5000), 400, "x-stator-tenant"),
		header("a header that is no hint", "x-stator-wish", "fast", 200, ""),
	)
}
