package pick

import (
	"math/rand/v2"

	"github.com/zeebo/xxh3"
)

// session takes for each session the rank with the highest hash of both names (rendezvous hashing). It
// keeps no state, so every router takes the same rank, before and after a restart. When a worker comes
// or goes, only sessions on that worker move. Load does not count. Requests without a session go to the
// least loaded rank.
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

// Sticky keeps a session on one rank as the policy Session does, for requests whose prompts are not read: they may be found in a cache
// there. It passes over ranks that have more than twice the mean number of requests, and more than crowd. Like Session it keeps no state.
var Sticky Policy = sticky{}

type sticky struct{}

// crowd is the number of requests that a rank may have in any case: a program sends several at a time, and engines run many together.
const crowd = 4

func (sticky) Choose(cs []Candidate, asked *Request, rng *rand.Rand) int {
	if asked.Session == "" {
		return leastLoaded{}.Choose(cs, asked, rng)
	}
	sum := int64(0)
	for i := range cs {
		sum += requests(&cs[i])
	}

	key := xxh3.HashString(asked.Session)
	best, most := -1, uint64(0)
	for i := range cs {
		n := requests(&cs[i])
		if n > crowd && n*int64(len(cs)) > 2*sum {
			continue
		}
		if h := rendezvous(key, &cs[i]); best < 0 || h > most {
			best, most = i, h
		}
	}
	return best // there is one: not all ranks have more than the mean
}

// stay takes the ranks of one worker, the least loaded of them. Without one among the candidates it does as session does.
type stay struct{ worker string }

// Stay returns a policy that takes a worker if the request may go there, and else does as the policy Session does.
func Stay(worker string) Policy { return stay{worker} }

func (s stay) Choose(cs []Candidate, asked *Request, rng *rand.Rand) int {
	best := -1
	for i := range cs {
		if cs[i].Rank.Worker.Name == s.worker && (best < 0 || byLoad(&cs[i], &cs[best]) < 0) {
			best = i
		}
	}
	if best >= 0 {
		return best
	}
	return session{}.Choose(cs, asked, rng)
}

// rendezvous is the hash of a session and a rank. It is made of names and rank numbers alone, because ids
// and addresses differ between routers and between starts.
func rendezvous(key uint64, c *Candidate) uint64 {
	return xxh3.HashStringSeed(c.Rank.Worker.Name, key+uint64(c.Rank.Number)*0x9e3779b97f4a7c15)
}
