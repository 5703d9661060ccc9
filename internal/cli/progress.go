package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// ProgressBar shows on a terminal how much of something is done. A nil bar shows nothing.
type ProgressBar struct {
	w     io.Writer
	began time.Time
	last  time.Time // when it was drawn
	share float64   // of the last call of Show
}

// NewProgressBar returns a bar, or nil where w is no terminal.
func NewProgressBar(w io.Writer) *ProgressBar {
	if !IsTerminal(w) {
		return nil
	}
	return &ProgressBar{w: w, began: time.Now()}
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// HasColour reports whether w is a terminal of someone who has not asked for plain text. See https://no-color.org.
func HasColour(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && IsTerminal(w) }

const (
	// drawEvery is the time between two drawings.
	drawEvery = 100 * time.Millisecond
	barWidth  = 40
	eraseLine = "\r\x1b[K"
)

// Show draws the bar at a share from 0 to 1, with an estimate of the time that is left. A share that is smaller than the last one begins
// another estimate.
func (b *ProgressBar) Show(share float64) {
	if b == nil {
		return
	}
	now := time.Now()
	if share < b.share {
		b.began = now
	}
	b.share = share
	if now.Sub(b.last) < drawEvery {
		return
	}
	b.last = now

	full := min(barWidth, max(0, int(share*barWidth)))
	text := fmt.Sprintf("\r%s%s %3.0f %%", strings.Repeat("█", full), strings.Repeat("░", barWidth-full), 100*min(1, max(0, share)))
	if took := now.Sub(b.began); share > 0.02 && took > time.Second {
		text += fmt.Sprintf("  %s left ", (time.Duration(float64(took)*(1/share-1)) + time.Second/2).Truncate(time.Second))
	}
	fmt.Fprint(b.w, text+"\x1b[K")
}

// During draws the bar for something that takes about a known time, until the returned function is called, which removes it.
func (b *ProgressBar) During(takes time.Duration) (end func()) {
	if b == nil {
		return func() {}
	}

	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer b.Clear()
		tick := time.NewTicker(drawEvery)
		defer tick.Stop()
		for {
			b.Show(min(0.99, time.Since(b.began).Seconds()/takes.Seconds()))
			select {
			case <-ended:
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

// Clear removes the bar.
func (b *ProgressBar) Clear() {
	if b != nil && !b.last.IsZero() {
		fmt.Fprint(b.w, eraseLine)
	}
}
