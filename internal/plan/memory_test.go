package plan

import (
	"testing"
	"time"
)

// Answers of 200 tokens end, and then others begin whose 2,000 tokens take minutes. Their length counts from their first tokens on: nothing
// of them has ended when the mean has doubled.
func TestLongAnswersCountBeforeTheyEnd(t *testing.T) {
	const over = 5 * time.Second
	short := Demand{Over: over, Answer: Lengths{Count: 20, Sum: 4000, Squares: 8e5}, Generated: 4000}
	var s shape
	for range 100 {
		s = s.after(&short)
	}
	if got := s.capacity().Answer; got < 199 || got > 201 {
		t.Fatalf("answers of %.0f tokens", got)
	}
	also := short
	also.Generated += 20_000 // 100 longer ones, at 40 tokens a second
	for range 12 {
		s = s.after(&also)
	}
	if got := s.capacity().Answer; got < 400 {
		t.Errorf("after a minute of longer answers: %.0f tokens", got)
	}

	// Tokens that were made while no answer ended are not lost.
	s = shape{}.after(&short)
	s = s.after(&Demand{Over: over, Generated: 4000})
	if got := s.capacity().Answer; got != 400 {
		t.Errorf("%.0f tokens for each answer that ended, want 400", got)
	}
}

// From a few requests in two minutes, one long answer does not double the mean.
func TestLengthsOfFewRequests(t *testing.T) {
	var s shape
	for range 60 {
		s = s.after(&Demand{Over: 5 * time.Second, Answer: Lengths{Count: 2, Sum: 600, Squares: 180_000}})
	}
	s = s.after(&Demand{Over: 5 * time.Second, Answer: Lengths{Count: 1, Sum: 16_000, Squares: 2.56e8}})
	if got := s.capacity().Answer; got > 500 {
		t.Errorf("answers of %.0f tokens after one of 16,000 among 120 of 300", got)
	}
}
