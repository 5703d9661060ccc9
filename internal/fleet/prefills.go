package fleet

import (
	"sync"
	"time"
)

// prefills are the prompts that a rank has computed. All methods are safe for concurrent use.
type prefills struct {
	mu    sync.Mutex
	total computed      // guarded by mu
	tick  time.Time     // when the last of them was seen to have ended; guarded by mu
	busy  PrefillPeriod // that has begun; guarded by mu
	known int64         // tokens of busy whose end was observed, if it is clear how long they took; guarded by mu
}

// computed counts the prompt tokens that were computed, and the passes in which that was, as far as bookings show.
type computed struct {
	tokens, passes int64
	guessed        int64 // tokens of prompts whose end was not seen
}

// PrefillPeriod is the time in which a rank computes prompts one after the other, from the first one that comes to an idle rank until
// none is left. Within it the time of one prompt is not known: a pass that ends one computes the beginning of the next.
type PrefillPeriod struct {
	Began   time.Time
	Prompts int64
	Tokens  int64
	Passes  int64
	// Took is the time that the rank worked on them.
	Took time.Duration
}

// PassTokens is the number of prompt tokens that an engine computes in one pass unless it is configured: vLLM's
// default max_num_batched_tokens.
const PassTokens = 8192

// passesOf returns the number of passes in which an engine computes so many tokens of prompts.
func passesOf(tokens int64) int64 { return max(1, (tokens+PassTokens-1)/PassTokens) }

// begin begins a period.
func (p *prefills) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = PrefillPeriod{Began: now}
	p.known = 0
}

// count adds a prompt that is computed. Prompts that are seen to end at one moment were computed in the same pass.
func (p *prefills) count(tokens int64, seen bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !seen {
		p.total.guessed += tokens
	}
	passes := int64(0)
	if !now.Equal(p.tick) {
		passes = passesOf(tokens)
		p.tick = now
	}
	p.total.tokens += tokens
	p.total.passes += passes
	p.busy.Prompts++
	p.busy.Tokens += tokens
	p.busy.Passes += passes
}

// countPeer adds prompt tokens that were computed for another replica.
func (p *prefills) countPeer(tokens int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total.tokens += tokens
	p.total.passes += passesOf(tokens)
}

func (p *prefills) done() computed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// mostTokens is the share of a period's tokens whose computation must have been observed. Prompts of which nearly all is cached often have
// no event of their own. They change the time of a period little, and most bursts have some.
const mostTokens = 0.95

// EndPeriod adds the observation of a prefill, after its end was counted. It returns the period that has ended with it; ok is false if
// other prefills are left, if one was held, or if the time of more than a few tokens was not observed.
func (l *Load) EndPeriod(tokens int64, e *Ended) (period PrefillPeriod, ok bool) {
	p := &l.prefills
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Sure && !e.Early {
		p.known += tokens
	}
	if l.own.prefillTokens.Load() > 0 || p.busy.Began.IsZero() {
		return period, false
	}
	period = p.busy
	period.Took = max(0, e.At.Sub(period.Began))
	return period, !l.held.Load() && float64(p.known) >= mostTokens*float64(period.Tokens)
}
