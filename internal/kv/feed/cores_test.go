package feed_test

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// BenchmarkIntakeOnCores: does the intake of events scale with cores? Each goroutine has a worker of its own, whose
// vLLM's bytes it decodes, hashes and applies: a new prompt of 64 blocks of 16 tokens is stored, another of 64 removed.
//
//	make bench-cores
func BenchmarkIntakeOnCores(b *testing.B) {
	const length, prompts = 64, 256
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 30})
	members := fleet.New(fleet.Hooks{})
	f := feed.New(feed.Config{}, members, x)
	publishers := make(chan publisher, runtime.GOMAXPROCS(0))
	for i := range cap(publishers) {
		if _, err := members.Put(fleet.Worker{Name: name(i), Model: "m", Address: "10.0.0.1:80", Ranks: 1, Epoch: 1, BlockSize: 16}); err != nil {
			b.Fatal(err)
		}
		publishers <- publisher{name(i), storesAndRemovals(uint64(i), prompts, length)}
	}

	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		from := <-publishers
		var batch kvevent.Batch
		for seq := uint64(0); p.Next(); seq++ {
			if err := kvevent.VLLM.Decode(from.messages[seq%prompts], kvevent.Limits{}, &batch); err != nil {
				b.Error(err)
				return
			}
			got := f.Apply(&feed.Message{Worker: from.worker, Epoch: 1, Seq: seq, Batch: &batch}, time.Unix(1, 0))
			if got.Verdict != feed.Applied {
				b.Error(got)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)*2*length/b.Elapsed().Seconds()/1e6, "Mblockops/s")
}

// publisher is a worker and the messages that it publishes.
type publisher struct {
	worker   string
	messages [][]byte
}

// storesAndRemovals returns messages that each store a prompt of so many blocks, and remove one that was stored half of
// all messages ago.
func storesAndRemovals(seed uint64, prompts, length int) [][]byte {
	rng := rand.New(rand.NewPCG(3, seed))
	chains := make([]kvevent.Raw, prompts)
	for i := range chains {
		r := kvevent.Raw{Kind: kvevent.Stored, BlockSize: 16}
		for range length {
			r.Hashes = append(r.Hashes, kvevent.EngineHash(rng.Uint64()))
		}
		for range length * r.BlockSize {
			r.Tokens = append(r.Tokens, rng.Uint32N(150_000))
		}
		chains[i] = r
	}

	messages := make([][]byte, prompts)
	for i := range messages {
		gone := kvevent.Raw{Kind: kvevent.Removed, Hashes: chains[(i+prompts/2)%prompts].Hashes}
		messages[i] = kvevent.AppendVLLM(nil, 1, 0, []kvevent.Raw{gone, chains[i]})
	}
	return messages
}
