package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// pace is the ratio of the time that a rank's work took to its estimate, which has the load under which it was done. It is 1 unless
// the latest observations show clearly that the rank differs from others of its class. An observation is a pass that computes prompts,
// or all passes between two reports of the engine:
//
//	observations                    pace
//	none, or the first paceIgnored  1
//	some, by chance perhaps         1: the ratio is within three times its doubt of 1, or nearly 1
//	enough                          the ratio
//	none since then                 falls to 1, until the moment from which the doubt is too large
//	the latest differ clearly       the ratio of the latest alone
//
// The fourth row makes a router try again a rank that it avoids. Such a rank gets no prefills while others are
// idle, so nothing else would show that it has recovered.
type pace struct {
	judged atomic.Pointer[judgedPace] // nil if the pace is 1

	mu       sync.Mutex
	evidence paceEvidence // guarded by mu
	recent   paceEvidence // of the latest observations alone; guarded by mu
	// ignored is the number of prefills that were ignored, and observed the number of all others. Guarded by mu.
	ignored, observed int
}

// judgedPace is a pace other than 1, from a moment until another, both in nanoseconds since 1970.
type judgedPace struct {
	ratio     float64
	at, until int64
}

// paceEvidence is sums over prefills, in which older ones count less. Each prefill has the weight w, took t
// seconds and was estimated to take e seconds. A ratio of sums weighs long prompts more, which are measured
// more exactly than short ones.
type paceEvidence struct {
	at               time.Time // of the latest prefill
	weight           float64   // Σ w
	took, estimated  float64   // Σ wt, Σ we
	took2, both, est float64   // Σ w²t², Σ w²te, Σ w²e²
}

const (
	// paceIgnored is the number of an engine's prefills that are ignored after its start. Engines compile kernels for their first prompts:
	// vLLM up to three variants of each, one for each kind of length.
	paceIgnored = 8
	// paceEven bounds the ratios that count: at most this, or at least its inverse. Ranks that are nearly equal must have equal costs. Else
	// the one that seems a little faster gets every request that could go to any of them.
	paceEven = 0.85
	// paceClear is the distance from 1, in multiples of its doubt, that a ratio needs to count. With 2, equal ranks under much noise differ
	// in 3 % of the time, and with 3 in less than 1 %. Slow ranks are recognised little later.
	paceClear = 3
	// paceBeyond bounds how many times its estimate a prefill counts. One whose end was missed would
	// otherwise make the rank seem slow for long.
	paceBeyond = 5
	// pacePasses bounds how many prefills an observation of several passes counts as. Chance in single passes evens out in it, but not what
	// the model does not know of its work.
	pacePasses = 4
	// paceKeep is the share of its weight that a prefill keeps at each new one: 0.98 weighs about the last 50.
	paceKeep = 0.98
	// paceKeepRecent is the same of the latest observations alone: 0.7 weighs the last three. If these differ clearly, by paceClear
	// times the difference that chance explains, older ones are forgotten. paceLeastNoise bounds from below by how much an observation
	// varies by chance, as a share.
	paceKeepRecent, paceLeastNoise = 0.7, 0.1
	// paceFade is the time in which a prefill's weight falls to 0.37. An avoided rank is tried again after one
	// to four times as long, depending on the evidence. A trial costs one prompt some delay, which is little
	// for one of the prompts of a minute. A shorter time would forget ranks with little traffic: evidence of
	// less than two prefills in it never suffices.
	paceFade = time.Minute
	// paceLongest bounds the time that a judgement lasts, in multiples of paceFade.
	paceLongest = 4.0
	// paceStart is the weight of the assumption that the ratio is 1, in prefills, and paceStartDoubt its
	// standard deviation, so that the first prefills do not decide alone.
	paceStart, paceStartDoubt = 3, 0.5
	// paceLow and paceHigh bound the ratio.
	paceLow, paceHigh = 0.25, 8
)

// now returns the pace at a moment, in nanoseconds since 1970. From the judgement on it falls to 1 in a straight line.
func (p *pace) now(now int64) float64 {
	j := p.judged.Load()
	if j == nil {
		return 1
	}
	left := float64(j.until-now) / float64(j.until-j.at)
	return 1 + (j.ratio-1)*min(max(left, 0), 1)
}

// observe adds work of some passes that ended at a moment. Work without an estimate is ignored.
func (p *pace) observe(passes float64, took, estimated time.Duration, at time.Time) {
	if estimated <= 0 || took < 0 {
		return
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.observed++
	seconds, expected := min(took, paceBeyond*estimated).Seconds(), estimated.Seconds()
	p.evidence.add(min(max(passes, 1), pacePasses), seconds, expected, paceKeep, at)
	p.recent.add(1, seconds, expected, paceKeepRecent, at)
	if p.recent.differs(&p.evidence) {
		p.evidence = p.recent
	}
	p.judged.Store(p.evidence.judge())
}

// isEarly reports whether the next prefill is one of the first ones, and counts it.
func (p *pace) isEarly() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ignored == paceIgnored {
		return false
	}
	p.ignored++
	return true
}

// stats returns the learned pace at a moment.
func (p *pace) stats(now time.Time) PaceStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PaceStats{Pace: p.now(now.UnixNano()), Prefills: p.observed, Ignored: p.ignored}
	s.Ratio, s.Doubt = p.evidence.ratio(p.evidence.faded(now))
	return s
}

// add adds an observation with a weight, after older ones have lost weight by their number and their age.
func (e *paceEvidence) add(w, took, estimated, keep float64, at time.Time) {
	keep *= e.faded(at)
	e.weight *= keep
	e.took *= keep
	e.estimated *= keep
	e.took2 *= keep * keep
	e.both *= keep * keep
	e.est *= keep * keep

	e.weight += w
	e.took += w * took
	e.estimated += w * estimated
	e.took2 += w * w * took * took
	e.both += w * w * took * estimated
	e.est += w * w * estimated * estimated
	if at.After(e.at) {
		e.at = at
	}
}

// faded is the share of their weight that prefills keep until a moment.
func (e *paceEvidence) faded(now time.Time) float64 {
	if e.at.IsZero() || !now.After(e.at) {
		return 1
	}
	return math.Exp(-float64(now.Sub(e.at)) / float64(paceFade))
}

// ratio returns the ratio and its standard error after all prefills have kept only the share keep of their weight. The assumption counts as
// some prefills of mean length.
func (e *paceEvidence) ratio(keep float64) (ratio, doubt float64) {
	if e.weight <= 0 {
		return 1, paceStartDoubt / math.Sqrt(paceStart)
	}

	mean := e.estimated / e.weight
	estimated := keep*e.estimated + paceStart*mean
	ratio = (keep*e.took + paceStart*mean) / estimated
	spread := keep * keep * max(0, e.took2-2*ratio*e.both+ratio*ratio*e.est)
	spread += paceStart * paceStartDoubt * paceStartDoubt * mean * mean
	return ratio, math.Sqrt(spread) / estimated
}

// differs reports whether the mean ratio of the latest observations differs from the mean ratio of all by more than chance explains.
func (e *paceEvidence) differs(all *paceEvidence) bool {
	if e.estimated <= 0 || all.est <= 0 {
		return false
	}
	latest, usual := e.took/e.estimated, all.took/all.estimated
	spread := max(0, all.took2-2*usual*all.both+usual*usual*all.est) / all.est
	noise := max(math.Sqrt(spread), paceLeastNoise*usual)
	return math.Abs(latest-usual) > paceClear*noise/math.Sqrt(e.weight)
}

// isClear reports whether the ratio counts after all prefills have kept only the share keep of their weight.
func (e *paceEvidence) isClear(keep float64) bool {
	ratio, doubt := e.ratio(keep)
	nearly := ratio > paceEven && ratio < 1/paceEven
	return !nearly && math.Abs(ratio-1) > paceClear*doubt
}

// judgeSteps is the number of times that judge halves the period in which it looks for the end of its judgement: the
// end is then exact to a second.
const judgeSteps = 10

// judge returns the pace now and the time until which it counts if no prefill follows; nil if it is 1.
func (e *paceEvidence) judge() *judgedPace {
	if !e.isClear(1) {
		return nil
	}
	known, vague := 0.0, paceLongest
	for range judgeSteps {
		if mid := (known + vague) / 2; e.isClear(math.Exp(-mid)) {
			known = mid
		} else {
			vague = mid
		}
	}
	ratio := e.took / e.estimated // without the assumption, which delays a judgement and must not soften it
	at := e.at.UnixNano()
	return &judgedPace{min(max(ratio, paceLow), paceHigh), at, at + int64(vague*float64(paceFade))}
}

// PaceStats is the learned pace of a rank, with its evidence.
type PaceStats struct {
	// Pace is the factor that decisions use. Ratio is the mean ratio of observed to estimated times, and Doubt
	// its standard error. Pace is 1 if Ratio may differ from 1 by chance.
	Pace, Ratio, Doubt float64
	// Prefills is the number of prefills that were observed, and Ignored the number before them that were ignored, because an
	// engine's first prompts are slow.
	Prefills, Ignored int
}
