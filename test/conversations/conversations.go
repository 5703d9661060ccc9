// Package conversations generates a trace of conversations, for tests and figures on machines without the published traces.
package conversations

import (
	"math/rand/v2"
	"time"

	"github.com/stator-project/stator/internal/trace"
)

// The conversations of [Rows], with the shares of Mooncake's conversation trace.
const (
	continueShare   = 0.42 // of requests, the ones that continue a conversation
	endShare        = 0.2  // of these, those after which the conversation ends
	maxNewBlocks    = 10   // of a turn
	meanFirstBlocks = 18   // of a first prompt, beyond two blocks
	meanAnswer      = 320  // tokens, beyond 20
	msPerRow        = 294
	maxOpen         = 300 // conversations that may continue
)

// Rows returns n rows of a generated trace in Mooncake's form: conversations that start at random, grow by a
// few blocks a turn and end. An infinite cache would reuse about two fifths of the blocks, a little more than of
// Mooncake's conversation trace. It is for machines without the published traces. The same seed gives the same rows.
func Rows(n int, seed uint64) []trace.MooncakeRow {
	rng := rand.New(rand.NewPCG(1, seed))
	next := uint64(1)
	fresh := func(k int) (ids []uint64) {
		for range k {
			ids = append(ids, next)
			next++
		}
		return ids
	}

	var open [][]uint64
	var rows []trace.MooncakeRow
	for i := range n {
		var blocks []uint64
		if len(open) > 0 && rng.Float64() < continueShare {
			k := rng.IntN(len(open))
			blocks = append(append(blocks, open[k]...), fresh(1+rng.IntN(maxNewBlocks))...)
			open[k] = blocks
			if rng.Float64() < endShare {
				open = append(open[:k], open[k+1:]...)
			}
		} else {
			blocks = append([]uint64{0}, fresh(2+int(rng.ExpFloat64()*meanFirstBlocks))...) // all share block 0
			open = append(open, blocks)
			if len(open) > maxOpen {
				open = open[1:]
			}
		}
		rows = append(rows, trace.MooncakeRow{
			Timestamp: float64(i) * msPerRow, Input: trace.MooncakeBlock * len(blocks), Output: 20 + int(rng.ExpFloat64()*meanAnswer),
			HashIDs: blocks,
		})
	}
	return rows
}

// List returns valid rows as a source.
func List(rows []trace.MooncakeRow) trace.Source {
	i := 0
	return func() (trace.Arrival, bool, error) {
		if i == len(rows) {
			return trace.Arrival{}, false, nil
		}
		row := &rows[i]
		i++
		return trace.Arrival{
			At:     time.Duration(row.Timestamp * float64(time.Millisecond)),
			Prompt: trace.Blocks{IDs: row.HashIDs, Size: trace.MooncakeBlock, Length: row.Input},
			Output: max(1, row.Output), Session: row.Session,
		}, true, nil
	}
}
