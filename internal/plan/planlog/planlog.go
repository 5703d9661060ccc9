// Package planlog is the format of a planner's log: its observations and its plans, as lines of JSON. Plans can be made again from
// a log, because plan.Next is pure.
//
//	line       when
//	begin      first in every file: the settings, and the rates with which forecasts began
//	settings   the settings were replaced
//	plan       a plan was made: the observation, and the plan
//
// A begin line with "continued" follows a file that was full: the planner's state of that time is not in it.
//
// All functions are pure.
package planlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
)

// version is the version of the format.
const version = 1

// Line is one line. One of Begin, Settings and Plan is set.
type Line struct {
	Begin    *Begin
	Settings *plan.Settings
	// Observation is Plan's. Its settings are not set.
	Observation *plan.Observation
	Plan        *plan.Plan
}

// Begin is the first line of a file.
type Begin struct {
	Settings *plan.Settings
	// Rates are the rates with which forecasts began, by model.
	Rates map[string][]float64
	// Continued means that the planner had made plans before.
	Continued bool
}

// line is a line in JSON.
type line struct {
	Version   int                  `json:"stator_plan_log,omitempty"`
	Continued bool                 `json:"continued,omitempty"`
	Rates     map[string][]float64 `json:"rates,omitempty"`
	Settings  *settings            `json:"settings,omitempty"`
	At        time.Time            `json:"at,omitzero"`
	Between   bool                 `json:"between,omitempty"`
	Demand    []plan.Demand        `json:"demand,omitempty"`
	Workers   []worker             `json:"workers,omitempty"`
	Term      uint64               `json:"term,omitempty"`
	Pools     []pool               `json:"pools,omitzero"`
}

// worker is a worker in JSON. Roles and states are words.
type worker struct {
	plan.Worker
	Role  string `json:"Role"`
	State string `json:"State"`
}

// pool is a pool of a plan in JSON.
type pool struct {
	plan.Pool
	Role string `json:"Role"`
}

// settings, model and configured are settings in JSON.
type settings struct {
	Budget plan.Budget
	Models []model
}

type model struct {
	plan.Model
	Pools []configured `json:"Pools"`
}

type configured struct {
	plan.Configured
	Role   string `json:"Role"`
	Engine engine `json:"Engine"`
}

// engine is an engine in JSON. One of its timings is set, or none for an engine whose speed is unknown.
type engine struct {
	KVTokens, MaxSeqs, MaxBatchedTokens int
	StepTokens                          float64

	Profile    *perfmodel.Measured   `json:",omitempty"`
	Roofline   *perfmodel.Roofline   `json:",omitempty"`
	Polynomial *perfmodel.Polynomial `json:",omitempty"`
	Linear     *perfmodel.Linear     `json:",omitempty"`
	// Tokens is the field of perfmodel.Scaled around one of them; 0 is none.
	Tokens int `json:",omitempty"`
}

// Append appends a line and its newline to b.
func (l *Line) Append(b []byte) ([]byte, error) {
	var out line
	var err error
	switch {
	case l.Begin != nil:
		out.Version = version
		out.Continued, out.Rates = l.Begin.Continued, l.Begin.Rates
		out.Settings, err = encodeSettings(l.Begin.Settings)
	case l.Settings != nil:
		out.Settings, err = encodeSettings(l.Settings)
	case l.Plan != nil:
		encodePlan(&out, l.Observation, l.Plan)
	default:
		err = errors.New("the line is empty")
	}
	if err == nil {
		var data []byte
		data, err = json.Marshal(&out)
		b = append(append(b, data...), '\n')
	}
	if err != nil {
		return b, fmt.Errorf("write plan log: %w", err)
	}
	return b, nil
}

// encodePlan fills the line of a plan.
func encodePlan(out *line, o *plan.Observation, p *plan.Plan) {
	out.At = o.At
	out.Between, out.Demand = o.Between, o.Demand
	for i := range o.Workers {
		w := &o.Workers[i]
		out.Workers = append(out.Workers, worker{Worker: *w, Role: w.Role.String(), State: w.State.String()})
	}
	out.Term = p.Term
	out.Pools = encodePools(p)
}

// encodePools returns the pools of a plan.
func encodePools(p *plan.Plan) []pool {
	out := []pool{} // never null: a plan without pools is a plan
	for i := range p.Pools {
		out = append(out, pool{Pool: p.Pools[i], Role: p.Pools[i].Role.String()})
	}
	return out
}

// Text returns a plan as its line has it: two plans are equal where their texts are.
func Text(p *plan.Plan) string {
	data, err := json.Marshal(encodePools(p))
	if err != nil {
		return err.Error() // a plan has no values that JSON cannot hold
	}
	return string(data)
}

// encodeSettings returns settings in JSON. The only error is a timing of an unknown kind.
func encodeSettings(s *plan.Settings) (*settings, error) {
	out := &settings{Budget: s.Budget}
	for i := range s.Models {
		m := model{Model: s.Models[i]}
		for _, c := range s.Models[i].Pools {
			e, err := encodeEngine(&c)
			if err != nil {
				return nil, err
			}
			c.Engine.Timing = nil // it is in e
			m.Pools = append(m.Pools, configured{Configured: c, Role: c.Role.String(), Engine: e})
		}
		out.Models = append(out.Models, m)
	}
	return out, nil
}

// encodeEngine returns a pool's engine in JSON.
func encodeEngine(c *plan.Configured) (engine, error) {
	e := engine{
		KVTokens: c.Engine.KVTokens, MaxSeqs: c.Engine.MaxSeqs, MaxBatchedTokens: c.Engine.MaxBatchedTokens,
		StepTokens: c.Engine.StepTokens,
	}
	inner := c.Engine.Timing
	if scaled, ok := inner.(perfmodel.Scaled); ok {
		inner, e.Tokens = scaled.Timing, max(1, scaled.Tokens)
	}
	switch t := inner.(type) {
	case nil:
	case *perfmodel.Profile:
		m := t.Measured()
		e.Profile = &m
	case perfmodel.Roofline:
		e.Roofline = &t
	case perfmodel.Polynomial:
		e.Polynomial = &t
	case perfmodel.Linear:
		e.Linear = &t
	default:
		return e, fmt.Errorf("a timing of kind %T cannot be written", t)
	}
	return e, nil
}

// Parse reads a line.
func Parse(data []byte) (Line, error) {
	var in line
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&in); err != nil {
		return Line{}, fmt.Errorf("read plan log: %w", err)
	}
	switch {
	case in.Version > version:
		return Line{}, fmt.Errorf("read plan log: its version is %d: this release reads %d", in.Version, version)
	case in.Settings != nil:
		s, err := decodeSettings(in.Settings)
		if err != nil {
			return Line{}, fmt.Errorf("read plan log: %w", err)
		}
		if in.Version == 0 {
			return Line{Settings: s}, nil
		}
		return Line{Begin: &Begin{Settings: s, Rates: in.Rates, Continued: in.Continued}}, nil
	case in.At.IsZero() || in.Pools == nil:
		return Line{}, errors.New("read plan log: a line has neither settings nor a plan: is it the file of planner.log?")
	}
	return decodePlan(&in)
}

// decodePlan returns the line of a plan.
func decodePlan(in *line) (Line, error) {
	o := &plan.Observation{At: in.At, Between: in.Between, Demand: in.Demand}
	for i := range in.Workers {
		w := in.Workers[i].Worker
		var err error
		w.Role, err = fleet.ParseRole(in.Workers[i].Role)
		if err == nil {
			w.State, err = parseState(in.Workers[i].State)
		}
		if err != nil {
			return Line{}, fmt.Errorf("read plan log: worker %.80q: %w", w.Name, err)
		}
		o.Workers = append(o.Workers, w)
	}

	p := &plan.Plan{Term: in.Term}
	for i := range in.Pools {
		x := in.Pools[i].Pool
		var err error
		x.Role, err = fleet.ParseRole(in.Pools[i].Role)
		if err != nil {
			return Line{}, fmt.Errorf("read plan log: pool %.80q: %w", x.Model, err)
		}
		p.Pools = append(p.Pools, x)
	}
	return Line{Observation: o, Plan: p}, nil
}

// parseState reads a state's name.
func parseState(text string) (fleet.State, error) {
	for s := range fleet.State(fleet.States) {
		if s.String() == text {
			return s, nil
		}
	}
	return 0, fmt.Errorf("state %.20q is unknown", text)
}

// decodeSettings returns the settings of a line.
func decodeSettings(in *settings) (*plan.Settings, error) {
	out := &plan.Settings{Budget: in.Budget}
	for i := range in.Models {
		m := in.Models[i].Model
		m.Pools = nil
		for _, c := range in.Models[i].Pools {
			pool := c.Configured
			var err error
			pool.Role, err = fleet.ParseRole(c.Role)
			if err == nil {
				pool.Engine.Timing, err = c.Engine.timing()
			}
			if err != nil {
				return nil, fmt.Errorf("model %.80q: %w", m.Name, err)
			}
			pool.Engine.KVTokens, pool.Engine.MaxSeqs = c.Engine.KVTokens, c.Engine.MaxSeqs
			pool.Engine.MaxBatchedTokens, pool.Engine.StepTokens = c.Engine.MaxBatchedTokens, c.Engine.StepTokens
			m.Pools = append(m.Pools, pool)
		}
		out.Models = append(out.Models, m)
	}
	return out, nil
}

// timing returns the timing of an engine; nil for none.
func (e *engine) timing() (perfmodel.Timing, error) {
	inner, err := e.inner()
	if err != nil || inner == nil || e.Tokens == 0 {
		return inner, err
	}
	if e.Tokens < 1 || e.Tokens > maxScale {
		return nil, fmt.Errorf("a token stands for %d: it must be 1 to %d", e.Tokens, maxScale)
	}
	return perfmodel.Scaled{Timing: inner, Tokens: e.Tokens}, nil
}

// maxScale bounds how many tokens one stands for.
const maxScale = 1 << 20

// inner returns the timing without a scale.
func (e *engine) inner() (perfmodel.Timing, error) {
	switch {
	case e.Profile != nil:
		return perfmodel.ProfileOf(*e.Profile)
	case e.Roofline != nil:
		return *e.Roofline, e.Roofline.Model.Validate()
	case e.Polynomial != nil:
		return *e.Polynomial, e.Polynomial.Validate()
	case e.Linear != nil:
		return *e.Linear, nil
	}
	return nil, nil
}
