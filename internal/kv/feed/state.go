package feed

import "time"

// State says what the knowledge of one rank's cache is worth.
type State uint8

// The states. A rank begins with None. Exact means that every event since the cache was
// empty has been applied. Stale knowledge is true as far as it goes, but something is
// missing: events that no replay could bring, or that have stopped arriving.
const (
	None    State = iota // no event yet, or none will come: predictions with a long lifetime
	Syncing              // a gap was found and the replay is awaited
	Exact                // predictions need only bridge the moment until the first event
	Stale                // incomplete: long predictions help out
)

var stateNames = [...]string{"none", "syncing", "exact", "stale"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// RankState is one line of the table of knowledge.
type RankState struct {
	Worker string
	Rank   int
	Epoch  uint64
	State  State
	// Seq is the last sequence number applied; only where Events or Snapshots is not 0.
	Seq uint64
	// LastEvent is when the last event was applied; zero where there was none.
	LastEvent time.Time
	// Blocks is how many the index holds for the rank.
	Blocks int
	Counts
}

// Counts says what has come for a rank since its epoch began.
type Counts struct {
	Events, Batches                   uint64
	Stored, Removed, Cleared          uint64 // blocks, blocks, times
	Duplicates                        uint64 // batches that had been applied
	Gaps, GivenUp                     uint64 // batches refused for a gap; gaps that no replay filled
	Restarts, Snapshots               uint64 // engines that began anew; snapshots swapped in
	WrongBlockSize, Unknown, NoTokens uint64 // events skipped: of another block size, of an unknown kind; blocks without tokens
}

func (c *Counts) add(o Counts) {
	c.Events += o.Events
	c.Batches += o.Batches
	c.Stored += o.Stored
	c.Removed += o.Removed
	c.Cleared += o.Cleared
	c.Duplicates += o.Duplicates
	c.Gaps += o.Gaps
	c.GivenUp += o.GivenUp
	c.Restarts += o.Restarts
	c.Snapshots += o.Snapshots
	c.WrongBlockSize += o.WrongBlockSize
	c.Unknown += o.Unknown
	c.NoTokens += o.NoTokens
}

// Stats sums over all ranks that are or were.
type Stats struct {
	Counts
	// UnknownWorker counts batches of workers or ranks that the fleet does not have;
	// WrongEpoch those of an engine process that is not the fleet's.
	UnknownWorker, WrongEpoch uint64
	// Ranks counts the fleet's ranks by State.
	Ranks [4]int
}
