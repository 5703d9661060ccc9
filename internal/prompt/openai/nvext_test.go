package openai

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
)

func hinted(nvext string) string { return `{"model":"m","prompt":"x","nvext":` + nvext + `}` }

// TestHints parses the routing hints of bodies. Other members of nvext are skipped.
func TestHints(t *testing.T) {
	r, err := Parse(Completions, []byte(hinted(`{"annotations":["a"],"router":{"overlap_score_weight":0,"temperature":0.5,"prefill_load_scale":16,
		"allowed_workers":["a","b"],"worker":"b","dp_rank":3,"class":"batch","ttft_deadline_ms":1500,"more":{"x":1}},
		"agent_hints":{"priority":2.5,"latency_sensitivity":1,"strict_priority":4,"osl":512,"speculative_prefill":true},
		"routing_constraints":{"required_taints":["zone=a","fast"],"preferred_taints":{"big":0.5,"old":-1,"big":2},"later":1}}`)), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := Hints{
		OverlapWeight: Override{0, true}, Temperature: Override{0.5, true}, PrefillLoadScale: Override{16, true}, Workers: []string{"a", "b"},
		Worker: "b", Rank: 3, Class: "batch", Deadline: 1500 * time.Millisecond, Priority: 2500 * time.Millisecond, Strict: 4, OutputTokens: 512,
		SpeculativePrefill: Override{1, true}, Required: []string{"zone=a", "fast"}, Preferred: []Preference{{"big", 2}, {"old", -1}},
	}
	if got, want := fmt.Sprintf("%+v", *r.Hints), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for nvext, want := range map[string]string{
		`null`: "<nil>",
		`{}`:   fmt.Sprint(&Hints{Rank: -1}),
		`{"router":null,"agent_hints":{"priority":-3,"osl":null}}`: fmt.Sprint(&Hints{Rank: -1}),
	} {
		r, err := Parse(Completions, []byte(hinted(nvext)), Limits{})
		if err != nil || fmt.Sprint(r.Hints) != want {
			t.Errorf("%s: %v, %v; want %s", nvext, r.Hints, err, want)
		}
	}
}

// TestWrongHints parses invalid hints. The error names the member and the values that it accepts.
func TestWrongHints(t *testing.T) {
	for _, c := range []struct{ nvext, param, says string }{
		{`[]`, "nvext", "expected an object, but got an array"},
		{`{"router":7}`, "nvext.router", "expected an object"},
		{`{"agent_hints":"x"}`, "nvext.agent_hints", "expected an object"},
		{`{"agent_hints":{"speculative_prefill":1}}`, "nvext.agent_hints.speculative_prefill", "expected a boolean"},
		{`{"router":{"temperature":-1}}`, "nvext.router.temperature", "must lie between 0 and 1000"},
		{`{"router":{"temperature":"hot"}}`, "nvext.router.temperature", "expected a number"},
		{`{"router":{"overlap_score_weight":1e9}}`, "nvext.router.overlap_score_weight", "must lie between 0 and 1000000"},
		{`{"router":{"prefill_load_scale":1e999}}`, "nvext.router.prefill_load_scale", "is too large"},
		{`{"router":{"dp_rank":-1}}`, "nvext.router.dp_rank", "must lie between 0 and 65535"},
		{`{"router":{"ttft_deadline_ms":0}}`, "nvext.router.ttft_deadline_ms", "must lie between 1 and 86400000"},
		{`{"router":{"allowed_workers":[]}}`, "nvext.router.allowed_workers", "must name at least one worker"},
		{`{"router":{"allowed_workers":["a",7]}}`, "nvext.router.allowed_workers[1]", "expected a string"},
		{`{"router":{"allowed_workers":[` + strings.Repeat(`"a",`, 256) + `"a"]}}`, "nvext.router.allowed_workers", "at most 256 names"},
		{`{"router":{"worker":"` + strings.Repeat("a", 257) + `"}}`, "nvext.router.worker", "at most 256 bytes"},
		{`{"routing_constraints":{"required_taints":["a",""]}}`, "nvext.routing_constraints.required_taints", "1 to 317 bytes"},
		{`{"routing_constraints":{"required_taints":"a"}}`, "nvext.routing_constraints.required_taints", "an array of strings"},
		{`{"routing_constraints":{"required_taints":[` + strings.Repeat(`"a",`, 64) + `"a"]}}`, "nvext.routing_constraints.required_taints", "at most 64 taints"},
		{`{"routing_constraints":{"preferred_taints":{"a":101}}}`, "nvext.routing_constraints.preferred_taints", "between -100 and 100"},
		{`{"routing_constraints":{"preferred_taints":{"a":"much"}}}`, "nvext.routing_constraints.preferred_taints.a", "a number"},
		{`{"cache_control":"5m"}`, "nvext.cache_control", "an object"},
		{`{"cache_control":{"ttl":300}}`, "nvext.cache_control.ttl", "a string"},
		{`{"cache_control":{"ttl":"soon"}}`, "nvext.cache_control.ttl", "such as 300s, 5m or 1h"},
		{`{"cache_control":{"ttl":"10ms"}}`, "nvext.cache_control.ttl", "a second or more"},
		{`{"agent_hints":{"osl":0}}`, "nvext.agent_hints.osl", "must lie between 1 and 2147483647"},
		{`{"agent_hints":{"strict_priority":1.5}}`, "nvext.agent_hints.strict_priority", "expected an integer"},
	} {
		_, err := Parse(Completions, []byte(hinted(c.nvext)), Limits{})
		var e *Error
		if !errors.As(err, &e) || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %+v, want %s: %s", c.nvext, err, c.param, c.says)
		}
	}
}

// TestCacheControl: a pin lasts as long as its ttl, an hour at most, and five minutes without one.
func TestCacheControl(t *testing.T) {
	for nvext, want := range map[string]time.Duration{
		`{}`:                     0,
		`{"cache_control":null}`: 0,
		`{"cache_control":{}}`:   5 * time.Minute,
		`{"cache_control":{"type":"ephemeral","ttl":"1h"}}`: time.Hour,
		`{"cache_control":{"ttl":"1s"}}`:                    time.Second,
		`{"cache_control":{"ttl":"48h"}}`:                   time.Hour,
	} {
		r, err := Parse(Completions, []byte(hinted(nvext)), Limits{})
		if err != nil || r.Hints.Pin != want {
			t.Errorf("%s: %+v, %v, want %v", nvext, r.Hints, err, want)
		}
	}
}

// FuzzHints checks that all accepted hints lie within their bounds. Every refusal is a 400 that names the
// member at fault.
func FuzzHints(f *testing.F) {
	for _, s := range []string{`{"cache_control":{"type":"ephemeral","ttl":"1h"}}`, `{"router":{"temperature":1,"allowed_workers":["a"],"dp_rank":1}}`, `{"agent_hints":{"priority":1e300,"osl":5}}`, `null`, `{"router":[]}`,
		`{"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":-1e2,"c":1e-9}}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, nvext string) {
		r, err := Parse(Completions, []byte(hinted(nvext)), Limits{})
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Status != 400 || e.Message == "") {
			t.Fatalf("%v", err)
		}
		if err != nil || r.Hints == nil {
			return
		}
		h := r.Hints
		for _, o := range []Override{h.OverlapWeight, h.PrefillLoadScale, h.Temperature} {
			if !(o.Value >= 0 && o.Value <= maxWeight) || !o.Set && o.Value != 0 {
				t.Errorf("%+v", o)
			}
		}
		if h.Pin != 0 && (h.Pin < time.Second || h.Pin > maxPin) {
			t.Errorf("a pin of %v", h.Pin)
		}
		if h.Rank < -1 || h.Rank > 1<<16 || h.Deadline < 0 || h.Priority < 0 || h.Priority > maxHeadStart*time.Second || h.Strict < 0 || h.Strict > maxStrict ||
			h.OutputTokens < 0 || len(h.Workers) > maxWorkers || len(h.Required) > maxTaints || len(h.Preferred) > maxTaints ||
			slices.ContainsFunc(h.Preferred, func(p Preference) bool { return !(math.Abs(p.Weight) <= maxPreference) || p.Taint == "" }) {
			t.Errorf("%+v", h)
		}
	})
}

// TestHintHeaders checks that each header of a hint has the same bounds as its member in the body.
func TestHintHeaders(t *testing.T) {
	for _, name := range envoynames.HintHeaders() {
		if hintByHeader[name] == nil {
			t.Errorf("Envoy sends the header %s, and no hint has it", name)
		}
	}
	h := &Hints{Rank: -1}
	for name, value := range map[string]string{
		"x-stator-worker": "b", "x-stator-rank": "3", "x-stator-class": "batch", "x-stator-tenant": "t", "x-stator-deadline": "1500ms",
		"x-stator-priority": "2.5", "x-stator-strict-priority": "4", "x-stator-speculative-prefill": "false", "x-stator-model": "no hint",
	} {
		if err := h.SetHeader(name, value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	want := Hints{Worker: "b", Rank: 3, Class: "batch", Tenant: "t", Deadline: 1500 * time.Millisecond, Priority: 2500 * time.Millisecond, Strict: 4,
		SpeculativePrefill: Override{0, true}}
	if got, want := fmt.Sprintf("%+v", *h), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("%s, want %s", got, want)
	}

	for _, c := range []struct{ name, value, says string }{
		{"x-stator-worker", strings.Repeat("a", 257), "at most 256 bytes"},
		{"x-stator-rank", "65536", "must lie between 0 and 65535"},
		{"x-stator-rank", "one", "must be a whole number"},
		{"x-stator-deadline", "0s", "must lie between 1 and 86400000"},
		{"x-stator-deadline", "soon", "must be a duration such as 1500ms"},
		{"x-stator-priority", "NaN", "must be a number of seconds"},
		{"x-stator-strict-priority", "1.5", "must be a whole number"},
		{"x-stator-speculative-prefill", "1", "must be true or false"},
	} {
		err := h.SetHeader(c.name, c.value)
		if err == nil || err.Status != 400 || err.Param != c.name || !strings.Contains(err.Message, c.says) {
			t.Errorf("%s %s: %+v, want %s", c.name, c.value, err, c.says)
		}
	}
}
