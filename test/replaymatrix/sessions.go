package main

import (
	"math"
	"math/rand/v2"

	"github.com/stator-project/stator/internal/trace"
)

const (
	// turns is the number of prompts of a session.
	turns = 5
	// firstShare is the length of the first prompt, and turnShare the length that each further turn adds, as shares of the mean
	// prompt. Their mean over all turns is 1.
	firstShare, turnShare = 0.4, 0.3
)

// session is a user's conversation. A prompt is all of the conversation so far, so its tokens begin with the tokens of the prompt before.
type session struct {
	id     uint64
	turn   int
	factor float64 // by which its prompts differ from the mean
}

// sessions replaces the prompts of arrivals by prompts of sessions. So many users have one each, and begin another one after the
// last turn. They take turns in an order that changes a little, so that between two prompts of a user there are about
// as many of others as there are users. The run begins with users at all turns.
func sessions(next trace.Source, g *trace.Generated, users int) trace.Source {
	rng := rand.New(rand.NewPCG(g.Seed, turns))
	begun := uint64(0)
	begin := func(turn int) session {
		begun++
		return session{begun, turn, 1 + g.Spread*(2*rng.Float64()-1)}
	}
	queue := make([]session, users)
	for i := range queue {
		queue[i] = begin(i % turns)
	}

	head := 0
	return func() (trace.Arrival, bool, error) {
		a, ok, err := next()
		if !ok || err != nil {
			return a, ok, err
		}
		other := (head + rng.IntN(users/4+1)) % users
		queue[head], queue[other] = queue[other], queue[head]
		s := &queue[head]
		head = (head + 1) % users

		length := s.factor * float64(g.Input) * (firstShare + turnShare*float64(s.turn))
		a.Prompt = trace.Segments{{ID: s.id, Length: max(1, int(math.Round(length)))}}
		s.turn++
		if s.turn == turns {
			*s = begin(0)
		}
		return a, true, nil
	}
}
