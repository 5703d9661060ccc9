package answers

import (
	"testing"
	"time"
)

// TestRequestLinesAreBounded: a second has so many lines, and the next one names how many requests had none.
func TestRequestLinesAreBounded(t *testing.T) {
	var l Lines
	now := time.Unix(100, 0)
	for i := range linesPerSecond + 7 {
		if _, ok := l.take(now); ok != (i < linesPerSecond) {
			t.Errorf("line %d: %v", i, ok)
		}
	}
	if skipped, ok := l.take(now.Add(time.Second)); !ok || skipped != 7 {
		t.Errorf("%d skipped, %v", skipped, ok)
	}
}
