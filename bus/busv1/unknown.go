package busv1

import "slices"

// The methods below report whether a message has fields that this release does not have, at any depth. They are for the
// messages that come so often that reflection would show.

// HasUnknown reports whether the load or its time of a tier has unknown fields.
func (m *Load) HasUnknown() bool {
	return len(m.unknownFields) > 0 || m.Peers != nil && len(m.Peers.unknownFields) > 0 ||
		slices.ContainsFunc(m.Tiers, func(t *TierLoad) bool { return len(t.unknownFields) > 0 })
}

// HasUnknown reports whether the batch or one of its events has unknown fields.
func (m *Batch) HasUnknown() bool {
	return len(m.unknownFields) > 0 || slices.ContainsFunc(m.Events, func(e *Event) bool { return len(e.unknownFields) > 0 })
}

// HasUnknown reports whether the bookings have unknown fields.
func (m *Bookings) HasUnknown() bool {
	return len(m.unknownFields) > 0 || slices.ContainsFunc(m.Ranks, func(a *RankAmount) bool { return len(a.unknownFields) > 0 }) ||
		slices.ContainsFunc(m.Prompts, func(p *SentPrompt) bool { return len(p.unknownFields) > 0 })
}

// HasUnknown reports whether the ends have unknown fields.
func (m *Ends) HasUnknown() bool {
	return len(m.unknownFields) > 0 || slices.ContainsFunc(m.Ends, func(e *RequestEnd) bool { return len(e.unknownFields) > 0 })
}
