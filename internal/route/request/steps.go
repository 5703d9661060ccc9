package request

import "time"

// Step is a step of a decision.
type Step int

// The steps, in their order. Prefilled is the end of the prefill worker's part, which follows the decision.
const (
	Parsed Step = iota
	Rendered
	Tokenized
	LookedUp
	Judged
	Booked
	Prefilled
	StepCount
)

// Steps has the times at which the steps of a decision ended. A step that the request did not need has no time. All methods may be called
// on nil, which records nothing.
type Steps struct {
	Now func() time.Time
	At  [StepCount]time.Time
}

// End records that a step has ended.
func (s *Steps) End(step Step) {
	if s != nil {
		s.At[step] = s.Now()
	}
}

// OnRendered returns a function that records the end of the step Rendered; nil for no steps.
func (s *Steps) OnRendered() func() {
	if s == nil {
		return nil
	}
	return func() { s.End(Rendered) }
}
