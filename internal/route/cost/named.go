package cost

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// New is the function of a name, with its default weights but for those that are given by their
// names: work, neighbour, decode, foreign and tier.device, tier.host, tier.disk, tier.external of
// delay; prefillScale, overlap, overlapDecay, decode, requests and the tiers of dynamo. The error
// names every weight that the function does not have, is negative or is not a number.
func New(name string, weights map[string]float64) (Function, error) {
	var f Function
	var fields map[string]*float64
	switch name {
	case NameDelay:
		w := Default()
		f, fields = w, w.fields()
	case NameDynamo:
		w := Dynamo()
		f, fields = w, w.fields()
	default:
		return nil, fmt.Errorf("cost %q is unknown: use %s or %s", name, NameDelay, NameDynamo)
	}
	var errs []error
	for _, weight := range slices.Sorted(maps.Keys(weights)) {
		field, ok := fields[weight]
		if !ok {
			errs = append(errs, fmt.Errorf("%s has no weight %s: it has %s", name, weight, strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
			continue
		}
		*field = weights[weight]
	}
	if err := errors.Join(append(errs, f.Validate())...); err != nil {
		return nil, err
	}
	return f, nil
}

func (w *Delay) fields() map[string]*float64 {
	return withTiers(map[string]*float64{"work": &w.Work, "neighbour": &w.Neighbour, "decode": &w.Decode, "foreign": &w.Foreign}, &w.Tier)
}

func (w *Weights) fields() map[string]*float64 {
	return withTiers(map[string]*float64{
		"prefillScale": &w.PrefillScale, "overlap": &w.Overlap, "overlapDecay": &w.OverlapDecay, "decode": &w.Decode, "requests": &w.Requests,
	}, &w.Tier)
}

func withTiers(fields map[string]*float64, tiers *[fleet.Tiers]float64) map[string]*float64 {
	for t := range tiers {
		fields["tier."+fleet.Tier(t).String()] = &tiers[t]
	}
	return fields
}

// Validate reports every weight that is negative or not a number.
func (w *Delay) Validate() error { return check(w.fields()) }

// Validate reports every weight that is negative or not a number.
func (w *Weights) Validate() error { return check(w.fields()) }

func check(fields map[string]*float64) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if v := *fields[name]; !(v >= 0) || math.IsInf(v, 1) {
			errs = append(errs, fmt.Errorf("weight %s is %v: it must be a number of at least 0", name, v))
		}
	}
	return errors.Join(errs...)
}
