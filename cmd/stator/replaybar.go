package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// bar shows on a terminal how far something has come. A nil one shows nothing.
type bar struct {
	w     io.Writer
	began time.Time
	last  time.Time
}

var noBar *bar

// newBar returns a bar where w is a terminal.
func newBar(w io.Writer) *bar {
	if !isTerminal(w) {
		return nil
	}
	return &bar{w: w, began: time.Now()}
}

// barEvery is how often the bar is drawn anew: as often as one sees.
const barEvery = 100 * time.Millisecond

// show draws the bar at a share from 0 to 1.
func (b *bar) show(share float64) {
	if b == nil {
		return
	}
	now := time.Now()
	if now.Sub(b.last) < barEvery {
		return
	}
	b.last = now
	const width = 40
	full := min(width, max(0, int(share*width)))
	text := fmt.Sprintf("\r%s%s %3.0f %%", strings.Repeat("█", full), strings.Repeat("░", width-full), 100*min(1, max(0, share)))
	if took := now.Sub(b.began); share > 0.02 && took > time.Second {
		text += fmt.Sprintf("  %s left ", (time.Duration(float64(took)*(1/share-1)) + time.Second/2).Truncate(time.Second))
	}
	fmt.Fprint(b.w, text+"\x1b[K")
}

// clear takes the bar away.
func (b *bar) clear() {
	if b != nil && !b.last.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
