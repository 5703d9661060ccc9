package pick

import (
	"math/rand/v2"

	"github.com/zeebo/xxh3"
)

// session takes for each session the rank whose hash with it is the highest (rendezvous hashing).
// Nothing is remembered, so every router takes the same rank, before a restart and after it; and
// when a worker comes or goes, only the sessions that move to it or from it move. Load does not
// matter. Requests without a session go to the least loaded rank.
type session struct{}

func (session) Choose(cs []Candidate, asked *Request, rng *rand.Rand) int {
	if asked.Session == "" {
		return leastLoaded{}.Choose(cs, asked, rng)
	}
	key := xxh3.HashString(asked.Session)
	best, most := 0, uint64(0)
	for i := range cs {
		if h := rendezvous(key, &cs[i]); i == 0 || h > most {
			best, most = i, h
		}
	}
	return best
}

// rendezvous is a rank's claim to a session. It is made of names and numbers alone: ids and addresses
// differ between routers and between starts.
func rendezvous(key uint64, c *Candidate) uint64 {
	return xxh3.HashStringSeed(c.Rank.Worker.Name, key+uint64(c.Rank.Number)*0x9e3779b97f4a7c15)
}
