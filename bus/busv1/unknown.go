package busv1

// The methods below report whether a message has fields that this release does not have, at any depth.
// A newer release sent it. Unmarshalling keeps such fields aside, where nothing reads them.

// HasUnknown reports whether the worker has unknown fields.
func (m *Worker) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether the load has unknown fields.
func (m *Load) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether the batch or one of its events has unknown fields.
func (m *Batch) HasUnknown() bool {
	for _, e := range m.Events {
		if len(e.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown reports whether the request has unknown fields.
func (m *ReplayRequest) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether the position has unknown fields.
func (m *Position) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether the request has unknown fields.
func (m *SnapshotRequest) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether the reply or its snapshot has unknown fields.
func (m *SnapshotReply) HasUnknown() bool {
	return m.Snapshot != nil && len(m.Snapshot.unknownFields) > 0 || len(m.unknownFields) > 0
}

// HasUnknown reports whether the bookings have unknown fields.
func (m *Bookings) HasUnknown() bool {
	for _, a := range m.Ranks {
		if len(a.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown reports whether the plan has unknown fields.
func (m *Plan) HasUnknown() bool {
	for _, pool := range m.Pools {
		for _, w := range pool.Workers {
			if len(w.unknownFields) > 0 {
				return true
			}
		}
	}
	for _, p := range m.Pools {
		if len(p.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown reports whether the ends have unknown fields.
func (m *Ends) HasUnknown() bool {
	for _, e := range m.Ends {
		if len(e.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown reports whether the message has unknown fields.
func (m *Gone) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether a leader has fields that this release does not have.
func (m *Leader) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether a demand or a model of it has fields that this release does not have.
func (m *Demand) HasUnknown() bool {
	for _, x := range m.Models {
		if len(x.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown reports whether the slots of a node, or one of them, have fields that this release does not have.
func (m *Slots) HasUnknown() bool {
	for _, s := range m.Slots {
		if len(s.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown reports whether an assignment has fields that this release does not have.
func (m *Assignment) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown reports whether the stores of a node, or one of them, have fields that this release does not have.
func (m *KVStores) HasUnknown() bool {
	for _, s := range m.Stores {
		if len(s.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}
