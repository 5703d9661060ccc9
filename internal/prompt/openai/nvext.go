package openai

import (
	"math"
	"strconv"

	"github.com/stator-project/stator/internal/jsonscan"
)

// nvextGroups are the members of nvext that hold hints, with their paths.
var nvextGroups = map[string]string{
	"router":              "nvext.router",
	"agent_hints":         "nvext.agent_hints",
	"routing_constraints": "nvext.routing_constraints",
	cacheControl:          "nvext.cache_control",
}

// cacheControl is the member of nvext that asks for a pin, also without a ttl.
const cacheControl = "cache_control"

// maxHintElements bounds the elements of all lists and objects of hints, repeated members included.
const maxHintElements = 1024

// nvext reads the routing hints of the body. Members that are no hints are skipped.
func (p *parser) nvext(key string) {
	p.req.Hints = nil
	if !p.expectKind(key, jsonscan.Object, "an object") {
		return
	}
	h := &p.req.memory.hints
	*h = Hints{Rank: -1}
	p.req.Hints = h
	p.object(func(key string) {
		group, ok := nvextGroups[key]
		switch {
		case !ok:
			p.Skip()
		case p.expectKind(group, jsonscan.Object, "an object"):
			if key == cacheControl {
				h.Pin = defaultPin
			}
			p.object(func(key string) { p.hint(h, hintByMember[member{group, key}]) })
		}
	})
}

// hint reads the value of hint k, which is nil for a member that is no hint. A null leaves the hint as it is.
func (p *parser) hint(h *Hints, k *hint) {
	if k == nil {
		p.Skip()
		return
	}

	path, must := k.path, ""
	switch k.kind {
	case textHint, ttlHint:
		if p.expectKind(path, jsonscan.String, "a string") {
			if v := p.string(); p.Err == nil {
				must = k.storeText(h, v)
			}
		}
	case wholeHint, deadlineHint:
		if v, ok := p.integer(path); ok {
			must = k.storeNumber(h, float64(v))
		}
	case numberHint, secondsHint:
		if v, ok := p.decimal(path); ok {
			must = k.storeNumber(h, v)
		}
	case switchHint:
		if p.expectKind(path, jsonscan.Bool, "a boolean") {
			if on := p.ReadBool(); p.Err == nil {
				must = k.storeNumber(h, numberOf(on))
			}
		}
	case workersHint:
		h.Workers = p.workers(path)
	case taintsHint:
		h.Required = p.requiredTaints(path)
	case weightsHint:
		h.Preferred = p.preferredTaints(path)
	}
	if must != "" {
		p.failInvalid(path, must)
	}
}

// requiredTaints reads an array of taints.
func (p *parser) requiredTaints(path string) (list []string) {
	if !p.expectKind(path, jsonscan.Array, "an array of strings") {
		return nil
	}
	p.EachElement(func(i int) {
		p.countHintElement(path)
		if s := p.stringOrNull(path + "[" + strconv.Itoa(i) + "]"); p.checkTaint(path, s, i) {
			list = append(list, s)
		}
	})
	return list
}

// preferredTaints reads an object with a weight for each taint. The last weight of a repeated taint counts.
func (p *parser) preferredTaints(path string) (list []Preference) {
	if !p.expectKind(path, jsonscan.Object, "an object of numbers") {
		return nil
	}
	p.object(func(name string) {
		p.countHintElement(path)
		weight, ok := p.decimal(path + "." + name)
		if !p.checkTaint(path, name, len(list)) || !ok {
			return
		}
		if weight < -maxPreference || weight > maxPreference {
			p.failInvalid(path, "must have weights between -"+formatBound(maxPreference)+" and "+formatBound(maxPreference))
			return
		}
		for i := range list {
			if list[i].Taint == name {
				list[i].Weight = weight
				return
			}
		}
		list = append(list, Preference{name, weight})
	})
	return list
}

// countHintElement counts one more element of a list or object of hints.
func (p *parser) countHintElement(path string) {
	p.hintCount++
	if p.hintCount > maxHintElements {
		p.failInvalid(path, "exceeds "+strconv.Itoa(maxHintElements)+" elements in all hints")
	}
}

// checkTaint reports whether the taint at a position of its list is valid. It records an error otherwise.
func (p *parser) checkTaint(path, name string, position int) bool {
	switch {
	case p.Err != nil:
	case position >= maxTaints:
		p.failInvalid(path, "must have at most "+strconv.Itoa(maxTaints)+" taints")
	case name == "" || len(name) > maxTaint:
		p.failInvalid(path, "must have taints of 1 to "+strconv.Itoa(maxTaint)+" bytes")
	}
	return p.Err == nil
}

// workers reads an array of worker names. Empty names are ignored, but at least one name must remain.
func (p *parser) workers(path string) (list []string) {
	if !p.expectKind(path, jsonscan.Array, "an array of strings") {
		return nil
	}
	p.EachElement(func(i int) {
		p.countHintElement(path)
		if i >= maxWorkers {
			p.failInvalid(path, "must have at most "+strconv.Itoa(maxWorkers)+" names")
			return
		}
		element := path + "[" + strconv.Itoa(i) + "]"
		name := p.stringOrNull(element)
		if len(name) > maxName {
			p.failInvalid(element, "must have at most "+strconv.Itoa(maxName)+" bytes")
		} else if name != "" {
			list = append(list, name)
		}
	})
	if p.Err == nil && len(list) == 0 {
		p.failInvalid(path, "must name at least one worker, or be left out")
	}
	return list
}

// decimal reads any number. It returns false for null or an error.
func (p *parser) decimal(param string) (float64, bool) {
	if !p.expectKind(param, jsonscan.Number, "a number") {
		return 0, false
	}
	digits := p.ReadNumber()
	if p.Err != nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(digits), 64)
	switch {
	case err != nil || math.IsInf(v, 0):
		p.failInvalid(param, "is too large")
	case math.IsNaN(v):
		p.failInvalid(param, "must be a number, not NaN")
	}
	return v, p.Err == nil
}
