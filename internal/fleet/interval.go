package fleet

import "time"

// Interval is the work of an engine between two of its reports. The zero value means that the work is not known.
//
// A prompt counts as computed when it ends, so an interval may have tokens of prompts that began before it, and lack the tokens of prompts
// that end after it. Long prompts would make that error large in the time between two reports, and learning would take prompts for cheaper
// than they are. So an interval goes on over further reports until it has enough passes with prompts.
type Interval struct {
	Gaps    uint64        // between tokens of answers
	GapTime time.Duration // their sum
	Span    time.Duration // between the reports
	// Running is the mean number of requests that decoded while the engine did.
	Running float64
	// Blocks is the mean number of blocks that a request occupies, as booked.
	Blocks float64
	// Tokens and Passes are the prompt tokens that were computed, and the passes in which that was.
	Tokens, Passes float64

	isBusy   bool // it decoded in nearly all of the time
	computed bool // it computed prompts, whether they have ended or not
	guessed  bool // some of their ends were not seen
}

// Gap is the mean time between two tokens.
func (i *Interval) Gap() time.Duration { return i.GapTime / time.Duration(max(1, i.Gaps)) }

// Decoded returns the time in which the engine decoded, and the number of passes. ok is false if the work in these passes is not known: it
// computed prompts and was idle for a while, or computed them in few passes.
func (i *Interval) Decoded() (took time.Duration, passes float64, ok bool) {
	switch {
	case i.Gaps == 0 || i.Running <= 0 || i.computed && !i.isBusy || i.isShort():
		return 0, 0, false
	case i.isBusy:
		took = i.Span
	default:
		took = time.Duration(float64(i.GapTime) / i.Running)
	}
	return took, float64(took) / float64(i.Gap()), true
}

// isShort reports whether the interval has prompts, and too few passes with them.
func (i *Interval) isShort() bool {
	least := leastPasses
	if i.guessed {
		least = leastGuessed
	}
	return i.computed && i.Passes < float64(least)
}

// leastPasses is the least number of passes with prompts in a known interval, if it has any; leastGuessed the same if the ends of some
// prompts were guessed, because that adds an error at both ends of the interval. longestInterval bounds the time in which so many come.
const (
	leastPasses     = 16
	leastGuessed    = 4 * leastPasses
	longestInterval = 30 * time.Second
)

// mostlyBusy is the share of the time in which a busy engine decodes. Requests that end or begin between the reports make it look
// less than 1.
const mostlyBusy = 0.7

// sinceMark returns the work of the engine since the report at the mark, i being its work since the report before. It moves the mark if no
// later report could make more of it known.
func (l *Load) sinceMark(i Interval, next *sample, booked *Amount) Interval {
	if i.Gaps > 0 && l.mark != nil {
		i = l.between(l.mark, next, booked)
	}
	if !i.isBusy || !i.isShort() || i.Span > longestInterval {
		l.mark = next
	}
	return i
}

// between returns the work of the engine between two reports.
func (l *Load) between(last, next *sample, booked *Amount) (i Interval) {
	if last == nil || next.Gaps <= last.Gaps || next.GapTime <= last.GapTime || !next.At.After(last.At) {
		return i // the first report, or the engine was idle or has restarted
	}
	i.Gaps = next.Gaps - last.Gaps
	i.GapTime = next.GapTime - last.GapTime
	i.Span = next.At.Sub(last.At)
	// While the engine decodes, at least one request does.
	mean := i.GapTime.Seconds() / i.Span.Seconds()
	i.Running = max(1, mean)
	if last.Running > 0 && next.Running > 0 {
		i.Running = max(1, (next.ran-last.ran)/i.Span.Seconds())
		i.isBusy = mean > mostlyBusy*i.Running
	}

	if booked.Requests <= 0 {
		i.computed = true // for all that is known
		return i
	}
	i.Blocks = float64(booked.DecodeBlocks) / float64(booked.Requests)
	i.Tokens = float64(next.done.tokens - last.done.tokens)
	i.Passes = float64(next.done.passes - last.done.passes)
	i.computed = i.Passes > 0 || last.computes || next.computes || last.guessed
	i.guessed = next.done.guessed > last.done.guessed
	return i
}

// slots finds out how many requests an engine runs at once: vLLM's max_num_seqs. Its reports do not have that number.
type slots struct {
	most int // that were reported
	full int // reports in a row with most of them, and others that waited
	now  int // 0 while it is not known
}

// fullReports is the number of reports in a row that must show the same number of requests. A request may wait for a moment because the
// prompt before it fills a pass, too.
const fullReports = 3

// usualSlots is the number of requests that an engine is taken to run at once until it has shown another: vLLM's default.
const usualSlots = 256

// orUsual returns the number of slots that the engine's options name, unless more requests ran at once; else the number that reports have
// shown, or the usual one. It is 0 if nothing is left to go by.
func (s *sample) orUsual(options int) int {
	switch {
	case options > 0 && s.most <= options:
		return options
	case s.slots > 0:
		return s.slots
	case s.most <= usualSlots:
		return usualSlots
	}
	return 0
}

// observe adds a report and returns the number of slots; 0 while it is not known.
func (s *slots) observe(r *Report) int {
	switch {
	case r.Running > s.most: // there are more than was thought
		*s = slots{most: r.Running}
	case r.Running < s.most, r.Waiting == 0:
		s.full = 0
		return s.now
	}
	if r.Running > 0 && r.Waiting > 0 {
		s.full++
	}
	if s.full >= fullReports {
		s.now = s.most
	}
	return s.now
}
