package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// Demand counts the requests and tokens that clients have asked of one replica of the router since its start.
type Demand struct {
	Replica string
	// Up is the time from the replica's start until the message was made, by its own clock, in ms. The difference between two messages is
	// the time that their differences cover, however late they come; 0 is unknown.
	Up     time.Duration
	Models []ModelDemand
}

// ModelDemand is the demand of one model. All but the figures of the queue are sums that only grow. The receiver takes the differences
// between two messages of one replica. Squares give the spread of lengths: a few long prompts need more room than many of their mean.
// Answers are counted in bytes, because routers do not read them: engines count their tokens.
type ModelDemand struct {
	// Model is the base model: requests for its adapters count here.
	Model string
	// Requests counts arrivals, those included that were refused because nothing was free.
	Requests uint64
	// PromptTokens and PromptSquares are sums over them of the tokens of their prompts, and of their squares.
	PromptTokens  uint64
	PromptSquares float64
	// CachedTokens is the number of the tokens that were expected to be in a cache.
	CachedTokens uint64
	// Ended counts requests that ended with an answer.
	Ended uint64
	// ResponseBytes and ResponseSquares are sums over them of the bytes of their answers, and of their squares.
	ResponseBytes   uint64
	ResponseSquares float64
	// Streams counts streams that ended and whose time to the first token is known, and Late those among them with a longer one than the
	// target of the model.
	Streams, Late uint64
	// Timed counts the streams whose number of tokens is known too, and Slow those among them with a longer mean time between tokens than
	// the target of the model.
	Timed, Slow uint64
	// PrefillNanoseconds and PrefillTokenNanoseconds are the learned time of a prefill, for no tokens and for each, and PrefillsObserved
	// is from how many observations.
	PrefillNanoseconds, PrefillsObserved uint64
	PrefillTokenNanoseconds              float64
	// Waiting and WaitingTokens are the requests in the replica's queue now, and their prompt tokens.
	Waiting, WaitingTokens int
}

// maxDemandModels bounds the models of one message.
const maxDemandModels = 1024

// demandSubject returns the subject of a replica's demand. "*" stands for any replica.
func (b *Bus) demandSubject(replica string) string { return b.subject("demand", replica) }

// PublishDemand publishes the demand of this replica. A message that is lost is made good by the next one, so nothing is repeated. The
// error is not nil when the bus was closed, or when its buffer for messages that wait for a reconnection is full.
func (b *Bus) PublishDemand(d *Demand) error {
	return b.control.nc.Publish(b.demandSubject(d.Replica), encode(demandMessage(d)))
}

// SubscribeDemand calls apply for the demand of every replica until ctx ends, one at a time. A message is dropped if it names
// another replica than its subject does.
func (b *Bus) SubscribeDemand(ctx context.Context, apply func(*Demand)) error {
	return b.control.subscribe(ctx, b.demandSubject("*"), func(m *nats.Msg) {
		var received busv1.Demand
		d, err := decodeDemand(&received, m.Data)
		if err == nil && (!fleet.ValidName(d.Replica) || m.Subject != b.demandSubject(d.Replica)) {
			err = fmt.Errorf("the demand is of replica %q", d.Replica)
		}
		if b.reader.accept(kindDemand, m.Subject, &received, err) {
			apply(d)
		}
	})
}

// demandMessage returns the message of a demand. It is a few hundred bytes for each model.
func demandMessage(d *Demand) *busv1.Demand {
	m := &busv1.Demand{Replica: d.Replica, UpMilliseconds: uint64(max(0, d.Up.Milliseconds()))}
	for i := range d.Models {
		x := &d.Models[i]
		m.Models = append(m.Models, &busv1.ModelDemand{
			Model: x.Model, Requests: x.Requests, CachedTokens: x.CachedTokens,
			PromptTokens: x.PromptTokens, PromptSquares: x.PromptSquares, Ended: x.Ended,
			ResponseBytes: x.ResponseBytes, ResponseSquares: x.ResponseSquares,
			Waiting: uint32(x.Waiting), WaitingTokens: uint64(x.WaitingTokens),
			PrefillNanoseconds: x.PrefillNanoseconds, PrefillTokenNanoseconds: x.PrefillTokenNanoseconds,
			PrefillsObserved: x.PrefillsObserved, Streams: x.Streams, Late: x.Late, Timed: x.Timed, Slow: x.Slow,
		})
	}
	return m
}

// decodeDemand returns the demand in data, by way of the empty message m. A value out of range would distort every plan, so the
// whole message is refused.
func decodeDemand(m *busv1.Demand, data []byte) (*Demand, error) {
	if err := decode(m, data); err != nil {
		return nil, err
	}
	if len(m.Models) > maxDemandModels {
		return nil, fmt.Errorf("%d models: there must be at most %d", len(m.Models), maxDemandModels)
	}

	if m.UpMilliseconds > maxUp {
		return nil, fmt.Errorf("the replica has run for %d ms: none runs for 250 years", m.UpMilliseconds)
	}

	// Sums are not compared with those before: their receiver does that, because a replica that has started again begins at 0.
	d := &Demand{Replica: m.Replica, Up: time.Duration(m.UpMilliseconds) * time.Millisecond}
	for _, x := range m.Models {
		if !(x.PromptSquares >= 0 && x.PromptSquares <= maxSquares) || !(x.ResponseSquares >= 0 && x.ResponseSquares <= maxSquares) {
			return nil, fmt.Errorf("model %.80q: squares are %g and %g: they must lie between 0 and %g", x.Model, x.PromptSquares,
				x.ResponseSquares, maxSquares)
		}
		if !(x.PrefillTokenNanoseconds >= 0 && x.PrefillTokenNanoseconds <= maxPrefill) || x.PrefillNanoseconds > maxPrefill {
			return nil, fmt.Errorf("model %.80q: a prefill lasts %d ns and %g ns for each token: there must be at most an hour of both",
				x.Model, x.PrefillNanoseconds, x.PrefillTokenNanoseconds)
		}
		if x.Waiting > maxRequests || x.WaitingTokens > maxWaitingTokens {
			return nil, fmt.Errorf("model %.80q: %d requests wait with %d tokens: no replica has as many",
				x.Model, x.Waiting, x.WaitingTokens)
		}
		d.Models = append(d.Models, ModelDemand{
			Model: x.Model, Requests: x.Requests, CachedTokens: x.CachedTokens,
			PromptTokens: x.PromptTokens, PromptSquares: x.PromptSquares, Ended: x.Ended,
			ResponseBytes: x.ResponseBytes, ResponseSquares: x.ResponseSquares,
			Waiting: int(x.Waiting), WaitingTokens: int(x.WaitingTokens),
			PrefillNanoseconds: x.PrefillNanoseconds, PrefillTokenNanoseconds: x.PrefillTokenNanoseconds,
			PrefillsObserved: x.PrefillsObserved, Streams: x.Streams, Late: x.Late, Timed: x.Timed, Slow: x.Slow,
		})
	}
	return d, nil
}

// The bounds of a demand, far above the demand that a replica can see in a year.
const (
	maxSquares       = 1e30
	maxWaitingTokens = 1 << 50
	maxPrefill       = 3_600_000_000_000 // nanoseconds
	maxUp            = 8_000_000_000_000 // milliseconds; a time.Duration holds 292 years
)
