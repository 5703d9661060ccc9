package kubernetes

import "time"

// KnowBookings has a connector that does not run yet take the bookings of all routers for known.
func (c *Connector) KnowBookings() { c.began = c.began.Add(-bookingsKnown) }

// WriteEvery is the least time between two changes of a target.
const WriteEvery = writeEvery

// Stale is for how long a plan counts at most with this interval.
func Stale(interval time.Duration) time.Duration { return 2*interval + 5*time.Second }
