package peers

import (
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
)

// RankAmount is everything that one replica has booked on one rank. It is not a change: the next amount
// of the rank replaces it, so that a lost update does no lasting harm.
type RankAmount struct {
	Worker string
	Epoch  uint64
	Rank   int
	Amount fleet.Amount
}

// Update has the bookings of one replica, and its prompts since the update before.
type Update struct {
	// Replica is the name of the replica. Every start of a process has a new one.
	Replica string
	// Seq grows by one with each update of the replica.
	Seq uint64
	// Ranks are the ranks whose amounts have changed since the update before. In a full update they
	// are all ranks whose amount is not zero.
	Ranks []RankAmount
	// Full is true for a full update.
	Full bool
	// Digest is the digest of all amounts of the replica. A receiver whose amounts have another has
	// lost an update.
	Digest uint64
	// Prompts are in the order in which they were sent or withdrawn. They are not sent again: if an update is lost, the rank's events show
	// their blocks later, and a prediction that was not taken back ends by its time.
	Prompts []Prompt
}

// isZero reports whether nothing is booked on the rank.
func (a *RankAmount) isZero() bool { return a.Amount == (fleet.Amount{}) }

// The bounds of one amount. They are far above the amounts that a router books, and low enough that the sum over all replicas
// and ranks does not overflow.
const (
	maxRequests    = 1 << 32
	maxTokens      = 1 << 44 // and blocks
	maxPrefillTime = time.Duration(1 << 52)
)

// isValid reports whether a router can have booked the amount: nothing is negative or out of bounds.
func (a *RankAmount) isValid() bool {
	b := &a.Amount
	return b.Requests >= 0 && b.Requests <= maxRequests &&
		b.PrefillTokens >= 0 && b.PrefillTokens <= maxTokens &&
		b.DecodeBlocks >= 0 && b.DecodeBlocks <= maxTokens &&
		b.PrefillTime >= 0 && b.PrefillTime <= maxPrefillTime
}

// digest returns the summand of one rank in [Update.Digest]; 0 for no bookings. The digest is a sum, so it
// can be updated when one amount changes, and does not depend on the order of changes.
func (a *RankAmount) digest() uint64 {
	if a.isZero() {
		return 0
	}

	var b [48]byte
	for i, v := range [...]uint64{
		a.Epoch, uint64(a.Rank), uint64(a.Amount.Requests), uint64(a.Amount.PrefillTokens),
		uint64(a.Amount.DecodeBlocks), uint64(a.Amount.PrefillTime),
	} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	return xxh3.HashSeed(b[:], xxh3.HashString(a.Worker))
}
