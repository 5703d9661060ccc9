package planlog

import (
	"fmt"

	"github.com/stator-project/stator/internal/plan"
)

// Again makes the plans of a log again. Create it with a change of settings, or none. It belongs to one goroutine.
type Again struct {
	// Change changes settings before plans are made from them: another algorithm, another budget. nil changes nothing.
	Change func(*plan.Settings)

	settings *plan.Settings
	state    plan.State
	// Plans counts plans, and Different the plans that differ from the log's.
	Plans, Different int
	// Continued means that the log begins in the middle of a planner's life, so its first plans may differ.
	Continued bool
}

// Next takes the next line of a log. For the line of a plan it returns the plan that is made again, and whether it equals the one of the
// log; nil for other lines. The first line must be a begin line.
func (a *Again) Next(l *Line) (made *plan.Plan, equal bool, err error) {
	switch {
	case l.Begin != nil:
		a.Continued = a.Continued || l.Begin.Continued && a.settings == nil
		if !l.Begin.Continued || a.settings == nil {
			a.state = plan.State{}
		}
		a.setSettings(l.Begin.Settings)
		for i := range a.settings.Models {
			m := &a.settings.Models[i]
			if rates := l.Begin.Rates[m.Name]; len(rates) > 0 && !l.Begin.Continued {
				a.state = a.state.Warm(m, rates)
			}
		}
		return nil, true, nil
	case l.Settings != nil:
		a.setSettings(l.Settings)
		return nil, true, nil
	case a.settings == nil:
		return nil, false, fmt.Errorf("the log has no settings before its first plan, at %v: give the whole file", l.Observation.At)
	}

	o := *l.Observation
	o.Settings = a.settings
	next, state := plan.Next(a.state, o)
	a.state = state
	next.Term = l.Plan.Term
	a.Plans++
	equal = Text(&next) == Text(l.Plan)
	if !equal {
		a.Different++
	}
	return &next, equal, nil
}

// setSettings replaces the settings.
func (a *Again) setSettings(s *plan.Settings) {
	if a.Change != nil {
		a.Change(s)
	}
	a.settings = s
}
