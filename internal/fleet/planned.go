package fleet

import "fmt"

// Planned has the settings of a plan for one worker.
type Planned struct {
	Name string
	// Weight replaces the configured one: 1 to MaxWeight.
	Weight uint32
	// Drain means that the worker gets no new requests: it is draining if it would otherwise be ready or starting.
	Drain bool
}

// MaxPlanned bounds the workers of one plan.
const MaxPlanned = 1 << 16

// SetPlanned replaces the settings of a plan for workers, by name, and reports whether that changed any worker of the fleet. They are kept
// for workers that are not there yet, and for every epoch of the present ones. Of two entries with one name the last one counts. After an
// error nothing has changed: a weight is out of range, or there are more than MaxPlanned entries.
//
// Neither Put nor a new epoch undoes a drain. Only the next plan does.
func (f *Fleet) SetPlanned(workers []Planned) (changed bool, err error) {
	if len(workers) > MaxPlanned {
		return false, fmt.Errorf("set planned workers: there are %d: at most %d are possible", len(workers), MaxPlanned)
	}
	planned := make(map[string]Planned, len(workers))
	for _, p := range workers {
		if p.Weight < 1 || p.Weight > MaxWeight {
			return false, fmt.Errorf("set planned workers: weight of %.80q is %d: it must lie between 1 and %d", p.Name, p.Weight,
				MaxWeight)
		}
		planned[p.Name] = p
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	f.planned = planned
	changed = f.refreshLocked()
	if changed {
		f.assembleLocked()
	}
	return changed, nil
}

// shownLocked returns a worker as snapshots have it.
func (f *Fleet) shownLocked(m *member) Worker {
	w := m.worker
	w.State = m.health.effective(w.State)
	p, isPlanned := f.planned[w.Name]
	if isPlanned {
		w.configured = w.Weight
		w.Weight = p.Weight
	}
	w.byOperator = len(f.withheld) > 0 && (f.withheld[w.Name] || f.withheld[NodeOf(w.Name)])
	if (p.Drain || w.byOperator) && (w.State == Ready || w.State == Starting) {
		w.undrained = w.State
		w.State = Draining
		w.withheld = true
	}
	return w
}

// SetWithheld replaces the workers that operators have drained, by their names or by the names of their nodes, and reports whether that
// changed any worker of the fleet. Like a plan's drains they hold for workers that are not there yet, and for every epoch.
func (f *Fleet) SetWithheld(names map[string]bool) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.withheld = names
	changed = f.refreshLocked()
	if changed {
		f.assembleLocked()
	}
	return changed
}

// ConfiguredWeight returns the weight that the source of the worker sets, whatever a plan sets.
func (w *Worker) ConfiguredWeight() uint32 {
	if w.configured > 0 {
		return w.configured
	}
	return w.Weight
}

// Withheld reports whether the worker of a snapshot is draining because of a plan or an operator alone: by its source and its health it
// is ready or starting.
func (w *Worker) Withheld() bool { return w.withheld }

// DrainedByOperator reports whether an operator has drained the worker of a snapshot.
func (w *Worker) DrainedByOperator() bool { return w.byOperator }

// StateWithoutPlan returns the state that follows from the worker's source, its health and operators, whatever a plan drains.
func (w *Worker) StateWithoutPlan() State {
	if w.withheld && !w.byOperator {
		return w.undrained
	}
	return w.State
}

// unplanned takes the settings of a plan and of operators out of a worker of a snapshot, so that Put does not make them the worker's own.
func (w *Worker) unplanned() {
	if w.configured > 0 {
		w.Weight = w.configured
	}
	if w.State == Draining && w.withheld { // else the caller has set another
		w.State = w.undrained
	}
	w.configured, w.undrained = 0, 0
	w.withheld, w.byOperator = false, false
}
