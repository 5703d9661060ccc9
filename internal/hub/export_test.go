package hub

import "time"

// Hasten makes the pauses between attempts short.
func (c *Client) Hasten() *Client {
	c.pause = time.Millisecond
	return c
}

// ParseListing is for the fuzz test.
func ParseListing(data []byte) (commit string, err error) {
	l, err := parseListing(data)
	return l.commit, err
}

// RemoveLeftovers is what each download does first.
func (c *Client) RemoveLeftovers(ref Ref, now time.Time) { c.repository(ref).removeLeftovers(now) }
