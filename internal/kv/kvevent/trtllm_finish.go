package kvevent

import "github.com/stator-project/stator/internal/fleet"

// finish turns the fields of one event into events.
func (d *trtDecoder) finish() error {
	m := &d.b.memory.trt
	switch d.f.kind {
	case "created":
		if !m.created { // a new cache, which reports its windows again
			m.window = 0
		}
		m.created, m.levels = true, 0
		m.window = max(m.window, d.f.window)
		d.b.addCleared()
		return nil
	case "unknown", "":
		d.b.Unknown++
		return nil
	}

	m.created = false
	window := d.window()
	switch d.f.kind {
	case "stored":
		d.addStored(window)
	case "removed":
		d.addRemoved(window)
	case "updated":
		d.addMoved(window)
	}
	return nil
}

// window is the window of the event's attention layers, 0 for full attention. If the beginning of the events
// was missed, the largest window so far counts as full attention. A larger one shows that this was wrong, so
// all blocks that were reported under it are cleared.
func (d *trtDecoder) window() int32 {
	m := &d.b.memory.trt
	switch {
	case d.f.window > m.window:
		if m.window != 0 {
			d.b.addCleared()
		}
		m.window = d.f.window
		return 0
	case d.f.window == m.window:
		return 0
	}
	return int32(d.f.window)
}

// addStored appends the event's complete blocks. Those on one cache level become one event.
func (d *trtDecoder) addStored(window int32) {
	m := &d.b.memory.trt
	size := d.b.BlockSize
	if size == 0 {
		for _, k := range m.blocks {
			m.blockSize = max(m.blockSize, k.tokens)
		}
		size = m.blockSize
	}
	if len(m.blocks) > 0 && m.blocks[0].tokens > size {
		size = m.blocks[0].tokens // not the configured size: package feed compares them and reports it
	}

	whole := 0
	for whole < len(m.blocks) && size > 0 && m.blocks[whole].tokens == size {
		whole++
	}
	if whole == 0 {
		d.b.Skipped++
		return
	}

	parent, hasParent := d.f.parent, d.f.hasParent
	tokens := d.b.tokens
	for first := 0; first < whole; {
		end := first + 1
		for end < whole && m.blocks[end].level == m.blocks[first].level {
			end++
		}
		d.b.memory.extra.first = first
		d.addRun(m.blocks[first:end], stored{
			parent: parent, hasParent: hasParent, tokens: tokens[:(end-first)*size], blockSize: size, window: window, group: -1,
		})
		tokens = tokens[(end-first)*size:]
		parent, hasParent = m.blocks[end-1].hash, true
		first = end
	}
}

// addRun appends one stored event for blocks on one cache level.
func (d *trtDecoder) addRun(blocks []trtBlock, s stored) {
	b := d.b
	from := len(b.hashes)
	for _, k := range blocks {
		b.hashes = append(b.hashes, k.hash)
	}
	b.memory.trt.levels |= 1 << blocks[0].level
	s.tier, s.hashes = trtTier(blocks[0].level), b.hashes[from:len(b.hashes):len(b.hashes)]
	s.lora, s.salt = text(d.f.adapter()), text(d.f.salt)
	s.extra = &b.memory.extra
	b.addStored(s)
}

// adapter is the LoRA's name or, if only its number was reported, the number, in a form that no request can
// name.
func (f *trtFields) adapter() []byte {
	if len(f.lora) > 0 {
		return f.lora
	}
	return f.loraID
}

func (d *trtDecoder) addRemoved(window int32) {
	hashes := d.b.hashes[d.f.hashes:len(d.b.hashes):len(d.b.hashes)]
	levels := d.b.memory.trt.levels | 1
	for level := range int(fleet.Disk) + 1 {
		if levels>>level&1 != 0 {
			d.b.Events = append(d.b.Events, Event{Kind: Removed, Tier: trtTier(level), Hashes: hashes, Window: int(window),
				Group: int(window)})
		}
	}
}

// addMoved appends the block's arrival before its departure, so that an index keeps its content in between.
func (d *trtDecoder) addMoved(window int32) {
	from, to := d.f.from, d.f.to
	hashes := d.b.hashes[d.f.hashes:len(d.b.hashes):len(d.b.hashes)]
	if from < 0 || to < 0 || from == to || len(hashes) == 0 {
		return // its priority changed
	}
	d.b.memory.trt.levels |= 1 << to
	d.b.Events = append(d.b.Events,
		Event{Kind: Stored, Tier: trtTier(to), Hashes: hashes, Window: int(window), Group: int(window)},
		Event{Kind: Removed, Tier: trtTier(from), Hashes: hashes, Window: int(window), Group: int(window)})
}

// trtTier maps cache levels: the device's memory, the host's, and what may come.
func trtTier(level int) fleet.Tier { return fleet.Tier(min(level, int(fleet.Disk))) }
