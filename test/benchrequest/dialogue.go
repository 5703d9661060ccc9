package main

import (
	"fmt"
	"math/rand/v2"
)

// dialogue is a conversation with an agent. Its bodies are generated from the seed whenever they are needed,
// because the bodies of all dialogues would need gigabytes. Two dialogues differ from their first words
// on, so they share no prefix. The turns of one dialogue share everything but their ends.
type dialogue struct {
	seed  uint64
	chars int // in all messages of a turn that continues the known one
}

// fresh is the share of these characters that the known turn does not have.
const fresh = 10 // per cent

// appendBody appends the chat request of a turn. The router has seen turn 0; every other turn
// continues it with another end.
func (d dialogue) appendBody(dst []byte, text *corpus, turn int) []byte {
	rng := rand.New(rand.NewPCG(d.seed, 0))
	news := d.chars * fresh / 100
	dst = append(dst, `{"model":"sim","messages":[`...)
	dst = d.appendKnown(dst, text, rng, d.chars-news)
	if turn > 0 {
		rng = rand.New(rand.NewPCG(d.seed, uint64(turn)))
		dst = appendMessage(dst, text, rng, "assistant", news/2)
		dst = appendMessage(dst, text, rng, "user", news-news/2)
	}

	dst[len(dst)-1] = ']' // was a comma
	return append(dst, `,"temperature":0,"max_tokens":1}`...)
}

// appendKnown adds the messages that both turns have: instructions, a task, then commands of the agent and
// their output, as long as agents' are.
func (d dialogue) appendKnown(dst []byte, text *corpus, rng *rand.Rand, chars int) []byte {
	name := fmt.Sprintf("You are agent %016x. ", d.seed)
	system := min(800, chars/3)

	dst = append(dst, `{"role":"system","content":"`...)
	dst = append(dst, name...)
	dst = text.append(dst, rng.IntN(text.size()), system-len(name))
	dst = append(dst, `"},`...)
	chars -= system
	for chars > 0 {
		// The last message is the user's: whatever is too short for another pair joins it.
		user, assistant := 300+rng.IntN(1500), 150+rng.IntN(450)
		if chars < user+assistant+300 {
			return appendMessage(dst, text, rng, "user", chars)
		}
		dst = appendMessage(dst, text, rng, "user", user)
		dst = appendMessage(dst, text, rng, "assistant", assistant)
		chars -= user + assistant
	}

	return dst
}

func appendMessage(dst []byte, text *corpus, rng *rand.Rand, role string, chars int) []byte {
	dst = append(dst, `{"role":"`...)
	dst = append(dst, role...)
	dst = append(dst, `","content":"`...)
	dst = text.append(dst, rng.IntN(text.size()), chars)
	return append(dst, `"},`...)
}

// seedOf names a request: no two of a run have the same.
func seedOf(round, size int, warm bool, i int) uint64 {
	x := uint64(round)<<48 ^ uint64(size)<<24 ^ uint64(i)<<1
	if warm {
		x |= 1
	}

	// A bijection, so that near names become far seeds and none becomes another's.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
