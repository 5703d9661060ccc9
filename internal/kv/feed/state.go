package feed

import "time"

// State describes how far the index of one rank can be trusted. The package comment has a table of the transitions.
type State uint8

// The states. A rank begins in None.
const (
	// None means that no event has arrived. Predictions have the long lifetime.
	None State = iota
	// Syncing means that events are missing and a replay or a snapshot is expected.
	Syncing
	// Exact means that the index equals the engine's cache after the last batch applied, and that every
	// later batch is still on its way.
	Exact
	// Stale means that the index may differ from the engine's cache. A [Reason] names why. Predictions
	// have the long lifetime.
	Stale
)

var stateNames = [...]string{"none", "syncing", "exact", "stale"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Reason is why a rank is Stale.
type Reason uint8

// The reasons. The first group ends when a message proves that nothing is missing. The second group means
// that the index differs from the engine's cache; it ends when that cache has been empty once, or with a
// complete snapshot.
const (
	// Sound is the reason of ranks that are not Stale.
	Sound Reason = iota

	// Interrupted means that events have stopped arriving, or that the connection was made again and the
	// engine has not yet shown that nothing was missed. Without a replay socket it cannot.
	Interrupted
	// AgentNotExact means that the rank is not exact at its agent.
	AgentNotExact

	// GapGivenUp means that missing batches were not replayed.
	GapGivenUp
	// Unreadable means that an event or a whole message could not be decoded.
	Unreadable
	// OtherBlockSize means that the engine's blocks are of another size than the router's.
	OtherBlockSize
	// PartialSnapshot means that blocks are missing from the agent's snapshot.
	PartialSnapshot
	// PromiseMissed means that the engine found none of the blocks that its events had reported, although they report no loss.
	PromiseMissed

	// Reasons is their number.
	Reasons
)

var reasonNames = [Reasons]string{"", "interrupted", "agent", "gap", "unreadable", "block_size", "snapshot", "promise"}

func (r Reason) String() string {
	if r < Reasons {
		return reasonNames[r]
	}
	return "unknown"
}

// RankState describes one rank of the fleet.
type RankState struct {
	Worker string
	Rank   int
	Epoch  uint64
	State  State
	// Reason is why the rank is Stale.
	Reason Reason
	// Seq is the number of the last batch applied. It means nothing while both Batches and
	// Snapshots are 0.
	Seq uint64
	// LastEvent is when the last batch was applied; zero before the first.
	LastEvent time.Time
	// Blocks is the number of blocks that the index stores for the rank.
	Blocks int
	Counts
}

// Counts are a rank's counters since its epoch began. /debug/feed shows them.
type Counts struct {
	// Events and Batches were applied.
	Events  uint64 `json:"events"`
	Batches uint64 `json:"batches"`
	// Stored and Removed count blocks, Cleared events.
	Stored  uint64 `json:"stored_blocks"`
	Removed uint64 `json:"removed_blocks"`
	Cleared uint64 `json:"clears"`
	// Duplicates are batches that had been applied before.
	Duplicates uint64 `json:"duplicate_batches"`
	// Gaps are batches and marks refused because an earlier batch is missing; UnrecoveredGaps are gaps
	// that stayed open for Config.Patience.
	Gaps            uint64 `json:"gaps"`
	UnrecoveredGaps uint64 `json:"unrecovered_gaps"`
	// Restarts are new engine processes within the epoch; Snapshots were restored.
	Restarts  uint64 `json:"restarts"`
	Snapshots uint64 `json:"snapshots"`
	// WrongBlockSize, Unknown and NoTokens count what could not be indexed: events and snapshots
	// of another block size, events of unknown kinds, and blocks without token ids.
	WrongBlockSize uint64 `json:"wrong_block_size_events"`
	Unknown        uint64 `json:"unknown_events"`
	NoTokens       uint64 `json:"no_token_blocks"`
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
	// Stale counts the fleet's stale ranks by Reason.
	Stale [Reasons]int
}
