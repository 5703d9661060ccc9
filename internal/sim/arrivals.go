package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Arrival is a request that a client makes.
type Arrival struct {
	// At is when, counted from any moment; arrivals are in order.
	At time.Duration
	// Prompt is the token ids, of which there is at least one.
	Prompt Tokens
	// Output is how many tokens the answer has, at least 1.
	Output int
	// Session names a conversation; empty is none.
	Session string
}

// Tokens is a prompt that is written out when it arrives, so that a long trace need not be in
// memory as token ids.
type Tokens interface {
	// Append appends the ids to dst.
	Append(dst []uint32) []uint32
}

// IDs is a prompt that is written out.
type IDs []uint32

// Append appends the ids.
func (t IDs) Append(dst []uint32) []uint32 { return append(dst, t...) }

// Blocks is a prompt known by the ids of its blocks, as traces give it: equal ids are equal
// blocks of Size tokens. The last one is cut to Length tokens in all.
type Blocks struct {
	IDs    []uint64
	Size   int
	Length int
}

// Append appends tokens made of the ids.
func (b Blocks) Append(dst []uint32) []uint32 {
	end := len(dst) + b.Length
	for _, id := range b.IDs {
		for i := 0; i < b.Size && len(dst) < end; i++ {
			dst = append(dst, token(id, i))
		}
	}
	for i := 0; len(dst) < end; i++ { // a length beyond its blocks belongs to nobody else
		dst = append(dst, token(uint64(b.Length)<<32|math.MaxUint32, i))
	}
	return dst
}

// token is the i-th token of a block: 31 bits that no other block is likely to have in its place.
func token(id uint64, i int) uint32 {
	x := (id+1)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return uint32(x >> 33)
}

// Rate says how many requests per second are expected at a time.
type Rate func(at time.Duration) float64

// Constant is always the same rate.
func Constant(perSecond float64) Rate { return func(time.Duration) float64 { return perSecond } }

// Sinusoid swings around a mean by a share of it, 0 to 1, once a period.
func Sinusoid(mean, swing float64, period time.Duration) Rate {
	return func(at time.Duration) float64 {
		return mean * (1 + swing*math.Sin(2*math.Pi*at.Seconds()/period.Seconds()))
	}
}

// Bursts is a rate of high for the first share of every period and of low for the rest.
func Bursts(low, high, share float64, period time.Duration) Rate {
	return func(at time.Duration) float64 {
		if (at % period).Seconds() < share*period.Seconds() {
			return high
		}
		return low
	}
}

// Times draws n arrival times of a rate: evenly spaced, or, where random is true, those of a
// Poisson process.
func Times(n int, rate Rate, random bool, rng *rand.Rand) []time.Duration {
	out := make([]time.Duration, 0, n)
	at := time.Duration(0)
	for range n {
		r := max(rate(at), 1e-6)
		gap := 1 / r
		if random {
			gap = rng.ExpFloat64() / r
		}
		at += time.Duration(gap * float64(time.Second))
		out = append(out, at)
	}
	return out
}
