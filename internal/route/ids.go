package route

// NewID returns a fresh decision id, for a caller that must name the decision before it is
// made: see Request.ID.
func (r *Router) NewID() string { return r.newID() }
