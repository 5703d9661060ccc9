package feed

import "time"

// State is how far the index can be trusted for one rank. The package comment has a table of the
// transitions.
type State uint8

// The states. A rank begins in None.
const (
	// None means that no event has arrived. Predictions have the long lifetime.
	None State = iota
	// Syncing means that events are missing and a replay or a snapshot is expected.
	Syncing
	// Exact means that every event since the cache was empty has been applied.
	Exact
	// Stale means that the indexed blocks were right once, but events are missing: none arrive
	// at present, or a gap was given up. Predictions have the long lifetime.
	Stale
)

var stateNames = [...]string{"none", "syncing", "exact", "stale"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// RankState describes one rank of the fleet.
type RankState struct {
	Worker string
	Rank   int
	Epoch  uint64
	State  State
	// Seq is the number of the last batch applied. It means nothing while both Batches and
	// Snapshots are 0.
	Seq uint64
	// LastEvent is when the last batch was applied; zero before the first.
	LastEvent time.Time
	// Blocks is how many blocks the index stores for the rank.
	Blocks int
	Counts
}

// Counts are a rank's counters since its epoch began.
type Counts struct {
	// Events and Batches were applied.
	Events, Batches uint64
	// Stored and Removed count blocks, Cleared events.
	Stored, Removed, Cleared uint64
	// Duplicates are batches that had been applied before.
	Duplicates uint64
	// Gaps are batches and marks refused because an earlier batch is missing; UnrecoveredGaps are gaps
	// that stayed open for Config.Patience.
	Gaps, UnrecoveredGaps uint64
	// Restarts are new engine processes within the epoch; Snapshots are those restored.
	Restarts, Snapshots uint64
	// WrongBlockSize, Unknown and NoTokens count what could not be indexed: events and snapshots
	// of another block size, events of unknown kinds, and blocks without token ids.
	WrongBlockSize, Unknown, NoTokens uint64
}

func (c *Counts) add(o Counts) {
	c.Events += o.Events
	c.Batches += o.Batches
	c.Stored += o.Stored
	c.Removed += o.Removed
	c.Cleared += o.Cleared
	c.Duplicates += o.Duplicates
	c.Gaps += o.Gaps
	c.UnrecoveredGaps += o.UnrecoveredGaps
	c.Restarts += o.Restarts
	c.Snapshots += o.Snapshots
	c.WrongBlockSize += o.WrongBlockSize
	c.Unknown += o.Unknown
	c.NoTokens += o.NoTokens
}

// Stats are the counters of all ranks, past ones included.
type Stats struct {
	Counts
	// UnknownWorker counts messages of workers or ranks that are not in the fleet. WrongEpoch
	// counts messages of an engine process that is not the one in the fleet.
	UnknownWorker, WrongEpoch uint64
	// Ranks counts the fleet's ranks by State.
	Ranks [4]int
}
