package object

// Stats is the state of a tier, and its counts since it was opened.
type Stats struct {
	State State
	// Reason describes why the tier is not healthy, and what to change.
	Reason string

	// Blocks and Packs are known to be in the store now. Forgotten counts blocks that Config.MaxBlocks had no room for.
	Blocks, Packs int
	Forgotten     int64
	// Filling is the number of packs in memory: being filled, waiting or being written.
	Filling int
	// PackBytes is the memory of all packs that were needed so far, at most Config.Packs times Config.PackBytes.
	PackBytes int64
	// Requests is the number of requests on the way.
	Requests int

	// Stored counts blocks that were taken, Duplicates blocks that were there already, and Busy blocks that were refused for lack of
	// room.
	Stored, Duplicates, Busy int64
	// PublishedPacks and PublishedBlocks are in the store. DroppedBlocks could not be written in time.
	PublishedPacks, PublishedBlocks, DroppedBlocks int64
	// Loaded counts blocks that were read, and Damaged blocks with a wrong tag.
	Loaded, Damaged int64
	// Indexes counts the indexes of other processes that were read, and BadIndexes the indexes that were refused: damaged, of another
	// format, or written without the secret of this store.
	Indexes, BadIndexes int64

	// Failed counts requests that failed, and BytesRead the bytes of reads that succeeded.
	Failed, BytesRead int64
}

// Stats returns the current values.
func (t *Tier) Stats() Stats {
	c := &t.counters
	s := Stats{
		Requests: len(t.requests), Filling: t.writing.buffers(), PackBytes: t.writing.allocated.Load(),
		Stored: c.stored.Load(), Duplicates: c.duplicates.Load(), Busy: c.busy.Load(),
		PublishedPacks: c.packs.Load(), PublishedBlocks: c.published.Load(), DroppedBlocks: c.dropped.Load(),
		Loaded: c.loaded.Load(), Damaged: c.damaged.Load(),
		Indexes: c.indexes.Load(), BadIndexes: c.badIndexes.Load(),
		Failed: c.requestFails.Load(), BytesRead: c.bytesRead.Load(),
	}
	s.Blocks, s.Packs, s.Forgotten = t.catalog.count()

	t.health.mu.Lock()
	defer t.health.mu.Unlock()
	s.State = t.health.state
	s.Reason = t.health.reason
	return s
}
