package kvindex

import (
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/test/process"
)

// BenchmarkPredict: what does the request path pay to predict a prompt? Four ranks share an index
// of two million reported blocks; each has as many predicted blocks as it may, so that new
// predictions drive out the oldest ones. new=64 and new=500 are prompts that no rank holds; turn is
// a conversation that goes on: 500 blocks known, reported by the rank, and 16 new. Making the
// hashes of the new blocks is in it.
//
//	go test -run - -bench Predict ./internal/kv/kvindex
func BenchmarkPredict(b *testing.B) {
	const limit = 1 << 14
	x := New(Config{MaxBytes: 1 << 30})
	fill(x, 4, 1<<19)
	at, number := time.Unix(1000, 0), uint64(1)<<40
	known, _ := prompt(0, 500)
	chain := blockhash.Chain(nil, known)
	for _, kind := range []struct {
		name       string
		known, new int
	}{{"new=64", 0, 64}, {"new=500", 0, 500}, {"turn/known=500/new=16", 500, 16}} {
		b.Run(kind.name, func(b *testing.B) {
			predict := func(i int) {
				chain = chain[:kind.known]
				for range kind.new {
					number++
					last := blockhash.Sequence(number)
					if len(chain) > 0 {
						last = chain[len(chain)-1]
					}
					chain = append(chain, blockhash.Next(last, blockhash.Block(number)))
				}
				at = at.Add(time.Millisecond)
				x.Predict(fleet.RankID(i%4), chain, kind.known, at.Add(5*time.Second), limit)
			}
			i := 0
			for ; i < 2*4*limit/kind.new; i++ {
				predict(i)
			}
			b.ReportAllocs()
			start := process.OwnCPU()
			for b.Loop() {
				predict(i)
				i++
			}
			b.ReportMetric((process.OwnCPU()-start).Seconds()/float64(b.N)*1e6, "cpu-µs/op")
			if n := x.Stats().Predicted; n < 4*(limit-int64(kind.new)) || n > 4*limit {
				b.Fatal(n, " predicted blocks")
			}
		})
	}
}
