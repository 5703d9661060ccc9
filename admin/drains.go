package admin

import (
	"net/http"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// settle is the time after the beginning of a drain in which decisions of before may still arrive at an engine.
const settle = 3 * time.Second

// kvIdle is the use of a KV cache, as a share, that counts as none.
const kvIdle = 1e-6

// Drains is /debug/drains.
type Drains struct {
	// Shared means that the other routers and control planes of the cluster have the same drains, by the bus.
	Shared bool    `json:"shared"`
	Drains []Drain `json:"drains"`
}

// Drain is one drain, of a worker or of a node.
type Drain struct {
	Name    string    `json:"name"`
	Since   time.Time `json:"since"`
	Workers []Drained `json:"workers"`
}

// Drained is a worker that is drained.
type Drained struct {
	Worker string `json:"worker"`
	// Idle means that no request is left there, and no transfer of a KV cache from there.
	Idle bool `json:"idle"`
	// Booked are the requests that routers have there. Running, Waiting and KVUsage are the engine's report; null without one.
	Booked  int64    `json:"booked"`
	Running *int     `json:"running"`
	Waiting *int     `json:"waiting"`
	KVUsage *float64 `json:"kv_usage"`
}

// addDrains adds the pages about drains.
func (s Sources) addDrains(p *pages) {
	if s.Drains == nil {
		return
	}
	p.addPage(pathDrains, func(w http.ResponseWriter, r *http.Request) {
		v := s.viewDrains(time.Now())
		show(w, r, v.String, func() any { return v })
	})
	p.post(pathDrain, func(w http.ResponseWriter, r *http.Request) {
		var call struct {
			Name string `json:"name"`
			Undo bool   `json:"undo"`
		}
		err := readCall(r, &call)
		if err == nil {
			err = s.Drains.Set(call.Name, !call.Undo, time.Now())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		v := s.viewDrains(time.Now())
		show(w, r, v.String, func() any { return v })
	})
}

// viewDrains returns the drains with the workers that they hold for.
func (s Sources) viewDrains(now time.Time) Drains {
	v := Drains{Shared: s.OnBus, Drains: []Drain{}}
	for _, d := range s.Drains.Active() {
		one := Drain{Name: d.Name, Since: d.At.UTC(), Workers: []Drained{}}
		byName := map[string]int{}
		for _, rank := range s.Fleet().Ranks {
			name := rank.Worker.Name
			if name != d.Name && fleet.NodeOf(name) != d.Name {
				continue
			}
			i, known := byName[name]
			if !known {
				i = len(one.Workers)
				byName[name] = i
				one.Workers = append(one.Workers, Drained{Worker: name, Idle: now.Sub(d.At) >= settle})
			}
			one.Workers[i].add(rank, d.At)
		}
		v.Drains = append(v.Drains, one)
	}
	return v
}

// add adds a rank of the worker.
func (v *Drained) add(r fleet.Rank, since time.Time) {
	v.Booked += r.Load.Booked().Requests
	v.Idle = v.Idle && v.Booked == 0
	report, ok := r.Load.LastReport()
	if !ok {
		return
	}
	if v.Running == nil {
		v.Running, v.Waiting = new(int), new(int)
		v.KVUsage = new(float64)
	}
	*v.Running += report.Running
	*v.Waiting += report.Waiting
	*v.KVUsage = max(*v.KVUsage, report.KVUsage)

	// A prefill worker keeps the blocks of its prompts until a decode worker has fetched them, or their lease is over.
	transfers := r.Worker.Role == fleet.Prefill && report.KVUsage > kvIdle
	v.Idle = v.Idle && report.At.After(since) && report.Running+report.Waiting == 0 && !transfers
}

// String is the page for people.
func (v Drains) String() string {
	return table("DRAINED\tSINCE\tWORKER\tBOOKED\tRUNNING\tWAITING\tIDLE", func(row func(...any)) {
		for _, d := range v.Drains {
			since := d.Since.Format(time.RFC3339)
			if len(d.Workers) == 0 {
				row(d.Name, since, "-", "", "", "", "")
			}
			for _, w := range d.Workers {
				row(d.Name, since, w.Worker, w.Booked, numberOrDash(w.Running), numberOrDash(w.Waiting), w.Idle)
			}
		}
	})
}

// numberOrDash returns a number that may not be known.
func numberOrDash(n *int) any {
	if n == nil {
		return "-"
	}
	return *n
}
