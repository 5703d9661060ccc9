package tokenizer

import (
	"errors"
	"math"
)

// Bounds end an encoding early.
type Bounds struct {
	// Tokens is the most ids that are wanted. The encoding ends soon after it has more.
	Tokens int
	// Done ends the encoding soon after it is closed. A nil Done never ends it.
	Done <-chan struct{}
}

// ErrTooLong is the error for a text with more tokens than wanted, and ErrStopped for a Done that was closed.
var (
	ErrTooLong = errors.New("encode: the text has more tokens than wanted")
	ErrStopped = errors.New("encode: stopped by the caller")
)

// progress compares one encoding with its bounds. The bounds are checked once for each checkBytes of text.
type progress struct {
	most      int // the length of encoder.out with the most ids that are wanted
	done      <-chan struct{}
	unchecked int // bytes since the last check
	err       error
}

// checkBytes is the amount of text between two checks of the bounds.
const checkBytes = 64 << 10

// start sets the bounds of an encoding whose first ids are in e.out already.
func (e *encoder) start(within Bounds) {
	most := math.MaxInt
	if within.Tokens < math.MaxInt-len(e.out) {
		most = len(e.out) + within.Tokens
	}
	e.progress = progress{most: most, done: within.Done}
	e.merger.done = within.Done
}

// finish returns the error of an encoding whose result has n ids.
func (e *encoder) finish(n int) error {
	err := e.err
	if err == nil && n > e.most {
		err = ErrTooLong
	}
	e.progress = progress{}
	e.merger.done = nil
	return err
}

// count counts n bytes of text, and checks the bounds when it is time.
func (e *encoder) count(n int) {
	e.unchecked += n
	if e.unchecked < checkBytes {
		return
	}

	e.unchecked = 0
	switch {
	case e.err != nil:
	case isClosed(e.done):
		e.err = ErrStopped
	case len(e.out) > e.most:
		e.err = ErrTooLong
	}
}

// stopped reports whether a bound was reached. All loops over a text end then.
func (e *encoder) stopped() bool { return e.err != nil }

// isClosed reports whether done is closed.
func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// giantBytes is the size from which a piece counts as giant. Merging a piece needs about nine bytes of memory
// for each of its bytes.
const giantBytes = 256 << 10

// giants bounds how many giant pieces this process merges at a time, because of their memory.
var giants = make(chan struct{}, 2)

// acquireGiant waits until a giant piece may be merged. It returns false if the encoding was stopped.
func (e *encoder) acquireGiant() bool {
	select {
	case giants <- struct{}{}:
		return true
	case <-e.done:
		e.err = ErrStopped
		return false
	}
}

func releaseGiant() { <-giants }
