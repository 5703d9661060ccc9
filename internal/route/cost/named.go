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

// New returns the function of a name, with its default weights except those in weights. Weights go by
// their names: firstToken, interference, evict, decode and tier.device, tier.host, tier.disk,
// tier.external of delay; prefillLoadScale, overlap, overlapDecay, decode, requests and the same tiers of
// dynamo. The error names every weight that the function does not have, or that is negative or not a
// number.
func New(name string, weights map[string]float64) (Function, error) {
	var f interface {
		Function
		fields() map[string]*float64
	}
	switch name {
	case NameDelay:
		f = Default()
	case NameDynamo:
		f = Dynamo()
	default:
		return nil, fmt.Errorf("cost %q is unknown: use %s or %s", name, NameDelay, NameDynamo)
	}

	var errs []error
	fields := f.fields()
	for _, weight := range slices.Sorted(maps.Keys(weights)) {
		field, ok := fields[weight]
		if !ok {
			errs = append(errs, fmt.Errorf("%s has no weight %s: it has %s", name, weight,
				strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
			continue
		}
		*field = weights[weight]
	}
	if err := errors.Join(append(errs, f.Validate())...); err != nil {
		return nil, err
	}
	return f, nil
}

// fields are the weights by their names in configurations.
func (w *Delay) fields() map[string]*float64 {
	return withTiers(&w.Tier, map[string]*float64{
		"firstToken":   &w.FirstToken,
		"interference": &w.Interference,
		"evict":        &w.Evict,
		"decode":       &w.Decode,
	})
}

// fields are the weights by their names in configurations.
func (w *Weights) fields() map[string]*float64 {
	return withTiers(&w.Tier, map[string]*float64{
		"prefillLoadScale": &w.PrefillLoadScale,
		"overlap":          &w.Overlap,
		"overlapDecay":     &w.OverlapDecay,
		"decode":           &w.Decode,
		"requests":         &w.Requests,
	})
}

func withTiers(tiers *[fleet.Tiers]float64, fields map[string]*float64) map[string]*float64 {
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
