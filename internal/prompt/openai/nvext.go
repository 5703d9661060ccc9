package openai

import (
	"math"
	"strconv"
	"time"
)

// Hints is what a request says of how it is to be routed, in its member nvext. The names are
// NVIDIA Dynamo's where it has one; workers go by name here. Strings alias the body.
type Hints struct {
	// OverlapWeight, PrefillLoadScale and Temperature take the place of the model's own:
	// nvext.router.{overlap_score_weight, prefill_load_scale, temperature}.
	OverlapWeight, PrefillLoadScale, Temperature Override
	// Workers are the only ones that may take the request, where there are any:
	// nvext.router.allowed_workers.
	Workers []string
	// Worker is the one that must take it, and Rank the rank there; -1 for any:
	// nvext.router.{worker, dp_rank}.
	Worker string
	Rank   int
	// Class is the queue's class: nvext.router.class.
	Class string
	// Tenant is the client's tenant. Only a header carries it; the body has Request.User.
	Tenant string
	// Deadline is how long its first token may take; 0 is no matter: nvext.router.ttft_deadline_ms.
	Deadline time.Duration
	// Priority is a head start in a queue: nvext.agent_hints.priority or, if larger,
	// latency_sensitivity, in seconds. Negative ones are none.
	Priority time.Duration
	// Strict goes before everything else: nvext.agent_hints.strict_priority.
	Strict int
	// OutputTokens is how long the answer is expected to be; 0 is unknown: nvext.agent_hints.osl.
	OutputTokens int
	// Required are the taints that a worker must have to take it, and Preferred those that it
	// rather goes to or, by a negative weight, away from:
	// nvext.routing_constraints.{required_taints, preferred_taints}.
	Required  []string
	Preferred []Preference
}

// Preference is a taint and how much it is wanted.
type Preference struct {
	Taint  string
	Weight float64 // -100 to 100
}

// Override is a number that a request may give.
type Override struct {
	Value float64
	Set   bool
}

// What hints may be. A day's head start is for ever; a name longer than a worker's can be is
// none's.
const (
	maxWeight      = 1e6
	maxTemperature = 1e3
	maxHeadStart   = 86_400
	maxStrict      = 1 << 20
	maxWorkers     = 256
	maxName        = 256
	maxTaint       = 317
	maxTaints      = 64
	maxPreference  = 100
)

// extension reads nvext. Members that do not concern routing are skipped.
func (p *parser) extension(key string) {
	p.req.Hints = nil
	if !p.want(key, objectValue, "an object") {
		return
	}
	h := &Hints{Rank: -1}
	p.req.Hints = h
	p.object(func(key string) {
		switch key {
		case "router":
			if p.want("nvext.router", objectValue, "an object") {
				p.object(func(key string) { p.routerHint(h, key) })
			}
		case "agent_hints":
			if p.want("nvext.agent_hints", objectValue, "an object") {
				p.object(func(key string) { p.agentHint(h, key) })
			}
		case "routing_constraints":
			if p.want("nvext.routing_constraints", objectValue, "an object") {
				p.object(func(key string) { p.constraint(h, key) })
			}
		default:
			p.skip()
		}
	})
}

func (p *parser) routerHint(h *Hints, key string) {
	at := "nvext.router." + key
	switch key {
	case "overlap_score_weight":
		h.OverlapWeight = p.override(at, maxWeight)
	case "prefill_load_scale":
		h.PrefillLoadScale = p.override(at, maxWeight)
	case "temperature":
		h.Temperature = p.override(at, maxTemperature)
	case "allowed_workers":
		h.Workers = p.names(at)
	case "worker":
		h.Worker = p.name(at)
	case "class":
		h.Class = p.name(at)
	case "dp_rank":
		h.Rank = p.upTo(at, 0, math.MaxUint16, -1)
	case "ttft_deadline_ms":
		h.Deadline = time.Duration(p.upTo(at, 1, maxHeadStart*1000, 0)) * time.Millisecond
	default:
		p.skip()
	}
}

func (p *parser) agentHint(h *Hints, key string) {
	at := "nvext.agent_hints." + key
	switch key {
	case "priority", "latency_sensitivity":
		if v, ok := p.decimal(at); ok {
			h.Priority = max(h.Priority, time.Duration(min(max(v, 0), maxHeadStart)*float64(time.Second)))
		}
	case "strict_priority":
		h.Strict = p.upTo(at, 0, maxStrict, 0)
	case "osl":
		h.OutputTokens = p.upTo(at, 1, math.MaxInt32, 0)
	default:
		p.skip()
	}
}

func (p *parser) constraint(h *Hints, key string) {
	at := "nvext.routing_constraints." + key
	switch key {
	case "required_taints":
		h.Required = nil
		if p.want(at, arrayValue, "an array of strings") {
			p.array(func(i int) {
				if s := p.text(at + "[" + strconv.Itoa(i) + "]"); p.taint(at, s, i) {
					h.Required = append(h.Required, s)
				}
			})
		}
	case "preferred_taints":
		h.Preferred = nil
		if p.want(at, objectValue, "an object of numbers") {
			p.object(func(name string) { p.preference(h, at, name) })
		}
	default:
		p.skip()
	}
}

func (p *parser) preference(h *Hints, at, name string) {
	v, ok := p.decimal(at + "." + name)
	if !p.taint(at, name, len(h.Preferred)) || !ok {
		return
	}
	if v < -maxPreference || v > maxPreference {
		p.invalid(at, "must have weights between -"+strconv.Itoa(maxPreference)+" and "+strconv.Itoa(maxPreference))
		return
	}
	for i := range h.Preferred {
		if h.Preferred[i].Taint == name { // of a key that comes twice the last counts
			h.Preferred[i].Weight = v
			return
		}
	}
	h.Preferred = append(h.Preferred, Preference{name, v})
}

// taint says whether the taint that stands at a place of a list may be one.
func (p *parser) taint(param, name string, place int) bool {
	switch {
	case p.err != nil:
	case place >= maxTaints:
		p.invalid(param, "must have at most "+strconv.Itoa(maxTaints)+" taints")
	case name == "" || len(name) > maxTaint:
		p.invalid(param, "must have taints of 1 to "+strconv.Itoa(maxTaint)+" bytes")
	}
	return p.err == nil
}

// decimal reads any number; false for null.
func (p *parser) decimal(param string) (float64, bool) {
	if !p.want(param, numberValue, "a number") {
		return 0, false
	}
	digits := p.number()
	if p.err != nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(digits), 64)
	if err != nil {
		p.invalid(param, "is too large")
	}
	return v, p.err == nil
}

func (p *parser) override(param string, most float64) Override {
	v, ok := p.decimal(param)
	if ok && (v < 0 || v > most) {
		p.invalid(param, "must lie between 0 and "+strconv.FormatFloat(most, 'f', -1, 64))
	}
	return Override{Value: v, Set: ok && p.err == nil}
}

// upTo reads a whole number within bounds, or absent for null.
func (p *parser) upTo(param string, least, most int64, absent int) int {
	v, ok := p.integer(param)
	if !ok {
		return absent
	}
	if v < least || v > most {
		p.invalid(param, "must lie between "+strconv.FormatInt(least, 10)+" and "+strconv.FormatInt(most, 10))
		return absent
	}
	return int(v)
}

func (p *parser) name(param string) string {
	s := p.text(param)
	if len(s) > maxName {
		p.invalid(param, "must have at most "+strconv.Itoa(maxName)+" bytes")
		return ""
	}
	return s
}

func (p *parser) names(param string) (list []string) {
	if !p.want(param, arrayValue, "an array of strings") {
		return nil
	}
	p.array(func(i int) {
		if i >= maxWorkers {
			p.invalid(param, "must have at most "+strconv.Itoa(maxWorkers)+" names")
			return
		}
		if s := p.name(param + "[" + strconv.Itoa(i) + "]"); s != "" {
			list = append(list, s)
		}
	})
	if p.err == nil && len(list) == 0 {
		p.invalid(param, "must name at least one worker, or be left out")
	}
	return list
}
