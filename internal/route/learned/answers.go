package learned

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// answerLengths are the lengths of answers that are expected of a class of workers: of all requests, and of the sessions that have the same
// length again and again. Answers are not read. A length follows from the time between the first token and the end, and from the
// time between tokens that the engine reports. All methods are safe for concurrent use.
type answerLengths struct {
	mean atomic.Uint64 // tokens, as bits of a float64; 0 before the first answer

	mu       sync.Mutex
	seen     int                            // guarded by mu
	sessions [answerSessions]sessionAnswers // by hash, each the last session of its place; guarded by mu
}

// sessionAnswers is the mean length of a session's answers. 16 bytes of 2,048 sessions are 32 KiB for each class of workers.
type sessionAnswers struct {
	session uint64
	tokens  float32
	seen    uint32
}

const (
	answerSessions = 2048
	// answerStart is expected before the first answer: vLLM's benchmarks and most chats have 100 to 400 tokens.
	answerStart = 200
	// answerKeep is the number of answers in the mean of all sessions, and sessionKeep the number in the mean of one session.
	answerKeep, sessionKeep = 200, 4
	// answerFirst is the number of answers that a session needs before its mean counts.
	answerFirst = 2
)

// MaxAnswer bounds the length of an answer, in tokens, even if the model's context length is not known.
const MaxAnswer = 131_072

// observe adds an answer. session is 0 for a request without one.
func (a *answerLengths) observe(tokens float64, session uint64) {
	if !(tokens >= 0) || math.IsInf(tokens, 1) {
		return
	}
	tokens = min(tokens, MaxAnswer)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = min(a.seen+1, answerKeep)
	mean := a.meanOfAll()
	if a.seen == 1 {
		mean = tokens
	}
	mean += (tokens - mean) / float64(a.seen)
	a.mean.Store(math.Float64bits(max(mean, 1)))

	if session == 0 {
		return
	}
	s := &a.sessions[session%answerSessions]
	if s.session != session {
		*s = sessionAnswers{session: session}
	}
	s.seen = min(s.seen+1, sessionKeep)
	s.tokens += (float32(tokens) - s.tokens) / float32(s.seen)
}

// meanOfAll is the mean length of all answers, in tokens.
func (a *answerLengths) meanOfAll() float64 {
	if mean := math.Float64frombits(a.mean.Load()); mean > 0 {
		return mean
	}
	return answerStart
}

// Of is the length that is expected of a session's next answer, in tokens.
func (a *answerLengths) Of(session uint64) float64 {
	if session == 0 {
		return a.meanOfAll()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := &a.sessions[session%answerSessions]; s.session == session && s.seen >= answerFirst {
		return max(1, float64(s.tokens))
	}
	return a.meanOfAll()
}

// SessionHash returns the hash of a session's name; 0 for none. The seed should be secret: sessions with one hash share their figures.
func SessionHash(seed uint64, name string) uint64 {
	if name == "" {
		return 0
	}
	return xxh3.HashStringSeed(name, seed) | 1
}

// reuse estimates how often a computed token is found in a cache again. All methods are safe for concurrent use.
type reuse struct{ cached, computed atomic.Int64 }

const (
	// reuseKeep is the number of tokens after which all counts are halved.
	reuseKeep = 1 << 26
	// reuseStart is the number of tokens that are assumed at the start to have been computed and not found again.
	reuseStart = 10_000
)

// Observe adds a prompt, by the expectations of its decision.
func (u *reuse) Observe(prompt, cached int) {
	u.cached.Add(int64(cached))
	if computed := u.computed.Add(int64(prompt - cached)); computed > reuseKeep {
		u.computed.Add(-computed / 2) // decisions beside this one may count at the wrong moment, which changes little
		u.cached.Add(-u.cached.Load() / 2)
	}
}

// Ratio is the number of cached tokens for each computed one, at most 1: a token that was found often is evicted last.
func (u *reuse) Ratio() float64 {
	return min(1, float64(max(0, u.cached.Load()))/float64(max(0, u.computed.Load())+reuseStart))
}

// answerTokens returns the number of tokens of an answer, from the time between its first and last token and the gap between tokens.
func answerTokens(took, gap time.Duration) float64 {
	if gap <= 0 || took < 0 {
		return math.NaN()
	}
	return 1 + float64(took)/float64(gap)
}
