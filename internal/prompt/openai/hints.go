package openai

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
)

// Hints are a request's wishes for its routing, in its member nvext or in headers. Members that NVIDIA Dynamo
// has too bear its names. Workers are identified by name. Strings alias the body. The table hints lists the
// member, the header and the bounds of each hint.
type Hints struct {
	// OverlapWeight, PrefillLoadScale and Temperature replace the model's settings.
	OverlapWeight, PrefillLoadScale, Temperature Override
	// Workers are the only workers to which the request may go. Empty means any.
	Workers []string
	// Worker is the only worker to which the request may go, empty for any. Rank is the only rank, -1 for
	// any.
	Worker string
	Rank   int
	// Class is the class of the queue.
	Class string
	// Prefill is the place of the prompt's computation, of a model with prefill and decode workers: PrefillRemote,
	// PrefillLocal, or empty for the router's choice.
	Prefill string
	// Tenant is the client's tenant. Only a header carries it; the body has Request.User.
	Tenant string
	// MigrationLimit bounds how often the stream of the answer is continued at another worker. Only a header carries it.
	MigrationLimit Override
	// Deadline is the longest acceptable time to the first token; 0 is no deadline.
	Deadline time.Duration
	// Priority is a head start in the queue. A negative one counts as none, and one of more than a day as
	// a day, because Dynamo's clients send both.
	Priority time.Duration
	// Strict precedes every other order of the queue. The request with the higher one goes first.
	Strict int
	// OutputTokens is the expected length of the answer; 0 is unknown.
	OutputTokens int
	// Pin is how long the prompt's blocks are to stay in the store of KV blocks: 1 s to an hour, or 0.
	Pin time.Duration
	// SpeculativePrefill has the prefix of the conversation's next turn computed after the answer: 1 for true, 0 for false.
	SpeculativePrefill Override
	// Required are the taints that a worker must have. Preferred ones make a worker cheaper or, with a
	// negative weight, dearer.
	Required  []string
	Preferred []Preference
}

// Preference is a taint and its weight, -100 to 100.
type Preference struct {
	Taint  string
	Weight float64
}

// The values of Hints.Prefill: a prefill worker computes the prompt, or the decode worker does.
const (
	PrefillRemote = "remote"
	PrefillLocal  = "local"
)

// Override is a number that a request may set. Value is 0 if Set is false.
type Override struct {
	Value float64
	Set   bool
}

// The bounds of hints.
const (
	maxWeight      = 1e6
	maxTemperature = 1e3
	maxHeadStart   = 86_400 // a day, in seconds
	maxStrict      = 1 << 20
	maxWorkers     = 256
	maxName        = 256 // bytes of the name of a worker or class
	maxTaint       = 317 // bytes, equal to fleet.MaxTaintBytes
	maxTaints      = 64
	maxPreference  = 100
	maxMigrations  = 100
	maxPin         = time.Hour
	defaultPin     = 5 * time.Minute // of a cache_control without a ttl, as in Anthropic's API
)

// hintKind is the form of a hint's value, in JSON and in a header.
type hintKind uint8

const (
	textHint     hintKind = iota // a string of at most maxName bytes
	numberHint                   // a number
	wholeHint                    // a whole number
	switchHint                   // true or false
	secondsHint                  // a number of seconds, capped to its bounds
	ttlHint                      // a duration such as 300s, 5m or 1h, capped to an hour
	deadlineHint                 // JSON: a whole number of milliseconds; header: a duration such as 1500ms
	workersHint                  // JSON: an array of names
	taintsHint                   // JSON: an array of taints
	weightsHint                  // JSON: an object with a weight for each taint
)

// hint describes one routing hint. Only hints with a text or a number have a function that stores them. The
// parser stores the lists and objects, which no header carries.
type hint struct {
	// path is the hint's member in the body, empty for a hint that only a header carries.
	path string
	// header is the hint's header, empty for a hint that only the body carries.
	header string
	kind   hintKind
	// values are the possible texts; none for any.
	values []string
	// least and most are the bounds of a number, in the unit of its kind.
	least, most float64
	// text and number store a value that lies within the bounds.
	text   func(h *Hints, v string)
	number func(h *Hints, v float64)
}

// hints lists the routing hints.
var hints = []hint{
	{path: "nvext.router.overlap_score_weight", kind: numberHint, most: maxWeight,
		number: func(h *Hints, v float64) { h.OverlapWeight = Override{v, true} }},
	{path: "nvext.router.prefill_load_scale", kind: numberHint, most: maxWeight,
		number: func(h *Hints, v float64) { h.PrefillLoadScale = Override{v, true} }},
	{path: "nvext.router.temperature", kind: numberHint, most: maxTemperature,
		number: func(h *Hints, v float64) { h.Temperature = Override{v, true} }},
	{path: "nvext.router.allowed_workers", kind: workersHint},
	{path: "nvext.router.worker", header: envoynames.HeaderWorker, kind: textHint,
		text: func(h *Hints, v string) { h.Worker = v }},
	{path: "nvext.router.dp_rank", header: envoynames.HeaderRank, kind: wholeHint, most: math.MaxUint16,
		number: func(h *Hints, v float64) { h.Rank = int(v) }},
	{path: "nvext.router.class", header: envoynames.HeaderClass, kind: textHint,
		text: func(h *Hints, v string) { h.Class = v }},
	{path: "nvext.router.prefill", header: envoynames.HeaderPrefill, kind: textHint, values: []string{PrefillRemote, PrefillLocal},
		text: func(h *Hints, v string) { h.Prefill = v }},
	{header: envoynames.HeaderTenant, kind: textHint,
		text: func(h *Hints, v string) { h.Tenant = v }},
	{header: envoynames.HeaderMigrationLimit, kind: wholeHint, most: maxMigrations,
		number: func(h *Hints, v float64) { h.MigrationLimit = Override{v, true} }},
	{path: "nvext.router.ttft_deadline_ms", header: envoynames.HeaderDeadline, kind: deadlineHint, least: 1, most: maxHeadStart * 1000,
		number: func(h *Hints, v float64) { h.Deadline = time.Duration(v * float64(time.Millisecond)) }},
	{path: "nvext.agent_hints.priority", header: envoynames.HeaderPriority, kind: secondsHint, most: maxHeadStart,
		number: (*Hints).raisePriority},
	{path: "nvext.agent_hints.latency_sensitivity", kind: secondsHint, most: maxHeadStart,
		number: (*Hints).raisePriority},
	{path: "nvext.agent_hints.strict_priority", header: envoynames.HeaderStrict, kind: wholeHint, most: maxStrict,
		number: func(h *Hints, v float64) { h.Strict = int(v) }},
	{path: "nvext.agent_hints.osl", kind: wholeHint, least: 1, most: math.MaxInt32,
		number: func(h *Hints, v float64) { h.OutputTokens = int(v) }},
	{path: "nvext.agent_hints.speculative_prefill", header: envoynames.HeaderSpeculative, kind: switchHint, most: 1,
		number: func(h *Hints, v float64) { h.SpeculativePrefill = Override{v, true} }},
	{path: "nvext.cache_control.ttl", kind: ttlHint},
	{path: "nvext.routing_constraints.required_taints", kind: taintsHint},
	{path: "nvext.routing_constraints.preferred_taints", kind: weightsHint},
}

// hintByMember and hintByHeader index the table hints. They never change.
var hintByMember, hintByHeader = indexHints()

// member is a member of the object at a path.
type member struct{ group, name string }

// indexHints builds the two indexes of the table hints.
func indexHints() (byMember map[member]*hint, byHeader map[string]*hint) {
	byMember, byHeader = map[member]*hint{}, map[string]*hint{}
	for i := range hints {
		k := &hints[i]
		if dot := strings.LastIndexByte(k.path, '.'); dot >= 0 {
			byMember[member{k.path[:dot], k.path[dot+1:]}] = k
		}
		if k.header != "" {
			byHeader[k.header] = k
		}
	}
	return byMember, byHeader
}

// raisePriority sets the priority to a number of seconds, unless it is higher already. Dynamo has two members
// for the priority, and the higher one applies.
func (h *Hints) raisePriority(seconds float64) {
	h.Priority = max(h.Priority, time.Duration(seconds*float64(time.Second)))
}

// storeText stores a text. For an invalid text it returns the rule that the text breaks.
func (k *hint) storeText(h *Hints, v string) (must string) {
	if len(v) > maxName {
		return fmt.Sprintf("must have at most %d bytes", maxName)
	}
	if k.kind == ttlHint {
		ttl, err := time.ParseDuration(v)
		if err != nil || ttl < time.Second {
			return "must be a duration of a second or more, such as 300s, 5m or 1h"
		}
		h.Pin = min(ttl, maxPin)
		return ""
	}
	if len(k.values) > 0 && !slices.Contains(k.values, v) {
		return "must be " + strings.Join(k.values, " or ")
	}
	k.text(h, v)
	return ""
}

// storeNumber stores a number. For a number out of bounds it returns the rule that the number breaks. Seconds
// are capped instead.
func (k *hint) storeNumber(h *Hints, v float64) (must string) {
	if k.kind == secondsHint {
		v = min(max(v, k.least), k.most)
	}
	if v < k.least || v > k.most {
		unit := ""
		if k.kind == deadlineHint {
			unit = " milliseconds"
		}
		return "must lie between " + formatBound(k.least) + " and " + formatBound(k.most) + unit
	}
	k.number(h, v)
	return ""
}

// numberOf returns 1 for true and 0 for false.
func numberOf(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// formatBound prints a bound without an exponent.
func formatBound(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// SetHeader sets the hint that a header carries. A header that carries none is ignored. The error names
// the header and what its value must be.
func (h *Hints) SetHeader(name, value string) *Error {
	k := hintByHeader[name]
	if k == nil {
		return nil
	}
	if must := k.parseHeader(h, value); must != "" {
		return Invalid(name, "invalid_header", "The header %s is %q: it %s.", name, value, must)
	}
	return nil
}

// parseHeader stores the value of a header. For an invalid value it returns the rule that the value breaks.
func (k *hint) parseHeader(h *Hints, value string) (must string) {
	switch k.kind {
	case wholeHint:
		v, err := strconv.Atoi(value)
		if err != nil {
			return "must be a whole number"
		}
		return k.storeNumber(h, float64(v))
	case switchHint:
		if value != "true" && value != "false" {
			return "must be true or false"
		}
		return k.storeNumber(h, numberOf(value == "true"))
	case deadlineHint:
		v, err := time.ParseDuration(value)
		if err != nil {
			return "must be a duration such as 1500ms"
		}
		return k.storeNumber(h, float64(v)/float64(time.Millisecond))
	case secondsHint:
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return "must be a number of seconds"
		}
		return k.storeNumber(h, v)
	}
	return k.storeText(h, value)
}
