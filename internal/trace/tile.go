package trace

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// Tiling repeats a trace, so that an hour becomes a day, with less traffic at night than at noon.
type Tiling struct {
	// Times is the number of times that the trace is played, one after the other; 0 means once.
	Times int
	// Swing is the variation of the number of requests over the whole time, 0 to 1. At the share x of that time it is 1 -
	// Swing·cos(2πx) times the trace's number: least at the beginning and at the end, most in the middle, and 1 in the mean.
	Swing float64
	// Seed determines which requests are left out, and which are repeated.
	Seed uint64
}

// maxTiles bounds Tiling.Times, and maxTiled the arrivals of a trace that is repeated: they are all in memory.
const (
	maxTiles = 10_000
	maxTiled = 4_000_000
)

// Validate reports everything that is wrong.
func (t Tiling) Validate() error {
	var errs []error
	if t.Times < 0 || t.Times > maxTiles {
		errs = append(errs, fmt.Errorf("the trace is played %d times: it must be 1 to %d", t.Times, maxTiles))
	}
	if !(t.Swing >= 0 && t.Swing <= 1) {
		errs = append(errs, fmt.Errorf("swing %v: it must be from 0 to 1", t.Swing))
	}
	return errors.Join(errs...)
}

// Tile returns a source of next's arrivals, repeated as t describes, which must be valid. If the factor of the curve is f, an
// arrival is played f times in the mean: left out, once or twice. The second time is halfway to the next arrival of the trace.
//
// Prompts share their beginnings with others of the same repetition, as in the trace, and with none of another one: blocks that a
// cache has from an hour ago are of no use. The same holds for second times, and sessions are separate, too. A repetition begins one mean
// time between arrivals after the last arrival of the one before.
//
// The first call reads all of next. done returns the share of the repetitions that were read.
func Tile(t Tiling, next Source) (source Source, done func() float64) {
	if t.Times <= 1 && t.Swing == 0 {
		return next, func() float64 { return 0 }
	}
	x := &tiler{times: max(1, t.Times), swing: t.Swing, rng: rand.New(rand.NewPCG(t.Seed, seedTiles)), next: next}
	return x.nextArrival, func() float64 { return float64(x.tile) / float64(x.times) }
}

// tiler is a trace that is being repeated.
type tiler struct {
	times int
	swing float64
	rng   *rand.Rand
	next  Source // nil once list has all its arrivals

	list   []Arrival     // of one repetition, from 0 on
	span   time.Duration // of one repetition
	tile   int           // the present repetition
	i      int           // of the present arrival in list
	copies int           // of the present arrival
	copy   int           // the next one of them
}

// nextArrival returns the next copy of an arrival.
func (t *tiler) nextArrival() (Arrival, bool, error) {
	if t.next != nil {
		if err := t.load(); err != nil {
			return Arrival{}, false, err
		}
		t.copies = t.draw()
	}

	for t.copy >= t.copies {
		t.copy = 0
		t.i++
		if t.i >= len(t.list) {
			t.i = 0
			t.tile++
		}
		if t.tile >= t.times || len(t.list) == 0 {
			return Arrival{}, false, nil
		}
		t.copies = t.draw()
	}

	a := t.present()
	t.copy++
	return a, true, nil
}

// load reads all arrivals of the trace.
func (t *tiler) load() error {
	next := t.next
	t.next = nil
	for {
		a, ok, err := next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if len(t.list) == maxTiled {
			return fmt.Errorf("repeat trace: it has more than %d requests: play its first rows alone", maxTiled)
		}
		t.list = append(t.list, a)
	}

	n := len(t.list)
	if n == 0 {
		return nil
	}
	first := t.list[0].At
	for i := range t.list {
		t.list[i].At -= first
	}
	t.span = t.list[n-1].At + t.list[n-1].At/time.Duration(max(1, n-1))
	if t.span > maxTraceTime/time.Duration(t.times) {
		return fmt.Errorf("repeat trace: %d times %v is too long", t.times, t.span)
	}
	return nil
}

// draw returns how many times the present arrival is played.
func (t *tiler) draw() int {
	if len(t.list) == 0 {
		return 0
	}
	share := 0.0
	if t.span > 0 {
		share = (float64(t.tile) + float64(t.list[t.i].At)/float64(t.span)) / float64(t.times)
	}
	factor := 1 - t.swing*math.Cos(2*math.Pi*share)
	whole := math.Floor(factor)
	n := int(whole)
	if t.rng.Float64() < factor-whole {
		n++
	}
	return n
}

// present returns the present copy of the present arrival.
func (t *tiler) present() Arrival {
	a := t.list[t.i]
	until := t.span
	if t.i+1 < len(t.list) {
		until = t.list[t.i+1].At
	}
	a.At += time.Duration(t.tile)*t.span + (until-a.At)*time.Duration(t.copy)/time.Duration(t.copies)

	number := uint64(t.tile)<<8 | uint64(t.copy)
	if number == 0 {
		return a
	}
	a.Prompt = changed{a.Prompt, Token(tagTile, int(number)) &^ (1 << 31)}
	if a.Session != "" {
		a.Session += "/" + strconv.FormatUint(number, 10)
	}
	return a
}

// changed is a prompt whose tokens all differ from the original's, and are equal where the original's are equal.
type changed struct {
	Tokens
	mask uint32
}

// Append appends the changed tokens.
func (c changed) Append(dst []uint32) []uint32 {
	from := len(dst)
	dst = c.Tokens.Append(dst)
	for i := from; i < len(dst); i++ {
		dst[i] ^= c.mask
	}
	return dst
}
