package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/test/process"
)

// The set-ups, as the table names them.
const (
	plainName = "plain Envoy"
	emptyName = "empty handler"
	coldName  = "ours, cold"
	warmName  = "ours, warm"

	duplexName = "ours, cold, FULL_DUPLEX_STREAMED"

	tenantsColdName = "tenants, cold"
	tenantsWarmName = "tenants, warm"

	doorColdName = "front door, cold"
	doorWarmName = "front door, warm"

	beforeColdName = "before, cold"
	beforeWarmName = "before, warm"
)

const (
	// batchChars bounds the conversations whose known turns are sent before any is continued:
	// extproc remembers 65,536 predicted blocks of a worker that reports none itself, which is about 3 million
	// characters. Most set-ups have four workers.
	batchChars = 8_000_000
	// batchCharsLegs is the same for the set-ups of --legs, where one worker has all prompts.
	batchCharsLegs = batchChars / 4
	// settle is longer than the last access-log entries take. Older programs have Envoy flush them every 100 ms.
	settle = 200 * time.Millisecond
)

// cell is one set-up at one size in one round.
type cell struct {
	Setup    string `json:"setup"`
	Chars    int    `json:"prompt_chars"`
	Round    int    `json:"round"`
	Requests int    `json:"requests"`
	figures
}

// figures are the measurements of a set-up.
type figures struct {
	Envoy   float64 `json:"envoy_us"`    // CPU µs per request
	ExtProc float64 `json:"ext_proc_us"` // the same; 0 if there is none
	Total   float64 `json:"total_us"`
	Rate    float64 `json:"requests_per_s"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Reused  float64 `json:"reused"` // share of the prompts' blocks that extproc knew of
}

// measure fills the report. Set-ups take turns within a round, and each round begins with
// another, so that what else the machine does falls on all alike.
func (b *bench) measure(ctx context.Context, text *corpus, r *report) error {
	for round := range b.rounds + 1 {
		n, what := b.requests, fmt.Sprintf("round %d of %d", round, b.rounds)
		if round == 0 {
			n, what = max(b.streams, n/5), "warm-up" // heaps grow, caches fill: not counted
		}
		for _, chars := range b.sizes {
			for i := range b.setups {
				s := b.setups[(i+round)%len(b.setups)]
				c, err := b.cell(s, text, round, chars, n)
				if err != nil {
					return fmt.Errorf("%s at %d characters: %w", s.name, chars, err)
				}
				if round > 0 {
					r.cells = append(r.cells, c)
				}
			}
		}
		_, _ = fmt.Fprintf(b.progress, "%s done\n", what)
	}
	return ctx.Err()
}

// tally sums over batches.
type tally struct {
	envoy, extproc, wall time.Duration
	took                 []time.Duration
	seen                 counts
}

// batch returns the number of requests that are sent in a row.
func (b *bench) batch(s *setup, chars int) int {
	sum := batchChars
	if s.single {
		sum = batchCharsLegs
	}
	return max(b.streams, sum/chars)
}

// cell measures n requests, in batches.
func (b *bench) cell(s *setup, text *corpus, round, chars, n int) (cell, error) {
	c, err := dial(s.gateway, b.streams)
	if err != nil {
		return cell{}, err
	}

	defer c.close()
	sum := tally{seen: counts{}}
	batch := b.batch(s, chars)
	for from := 0; from < n; from += batch {
		k := min(batch, n-from)
		turn := func(t int) func([]byte, int) []byte {
			return func(dst []byte, i int) []byte {
				return dialogue{seedOf(round, chars, s.warm, from+i), chars}.appendBody(dst, text, t)
			}
		}
		if s.warm {
			if err := b.send(s, c, k, turn(0), &tally{seen: counts{}}); err != nil {
				return cell{}, fmt.Errorf("known turns: %w", err)
			}
		}
		if err := b.send(s, c, k, turn(1), &sum); err != nil {
			return cell{}, err
		}
	}

	return cell{Setup: s.name, Chars: chars, Round: round, Requests: n, figures: sum.figures(n)}, nil
}

// send sends k requests, adds their cost to sum, and proves that decisions were obeyed. Asking the witness costs
// CPU too, so it is asked outside of the counted time.
func (b *bench) send(s *setup, c *clients, k int, body func([]byte, int) []byte, sum *tally) error {
	ctx := b.broken
	before, err := s.read(ctx)
	if err != nil {
		return err
	}

	served, computed := b.workers.served.Load(), s.computed()
	envoy, extproc, err := s.cpu()
	if err != nil {
		return err
	}

	wall, took, err := c.sendAll(ctx, k, body)
	if err == nil {
		err = backoff.Sleep(ctx, settle)
	}
	if err != nil {
		return err
	}

	envoyAfter, extprocAfter, err := s.cpu()
	if err != nil {
		return err
	}

	sum.envoy += envoyAfter - envoy
	sum.extproc += extprocAfter - extproc
	sum.wall += wall
	sum.took = append(sum.took, took...)
	if got := b.workers.served.Load() - served; got != int64(k) {
		return fmt.Errorf("workers served %d of %d requests", got, k)
	}
	if err := b.prove(ctx, s, before, k, sum); err != nil {
		return err
	}
	if got := s.computed() - computed; s.prefills != nil && got != int64(k) {
		return fmt.Errorf("the prefill worker computed %d of %d prompts", got, k)
	}
	return nil
}

// prove waits until the witness has counted all k requests, and returns an error unless each was served as
// it was picked.
func (b *bench) prove(ctx context.Context, s *setup, before counts, k int, sum *tally) error {
	var seen counts
	err := process.Await(ctx, 10*time.Second, func(ctx context.Context) error {
		now, err := s.read(ctx)
		if err != nil {
			return err
		}
		seen = now.since(before)
		return s.prove(seen, k)
	})

	for what, n := range seen {
		sum.seen[what] += n
	}
	if err != nil {
		return fmt.Errorf("prove that decisions were obeyed: %w", err)
	}
	return nil
}

// cpu reads the CPU time of the set-up's processes. A set-up without a router has spent nothing there.
func (s *setup) cpu() (envoy, extproc time.Duration, err error) {
	envoy, err = process.CPU(s.envoy)
	if err != nil || s.extproc == 0 {
		return envoy, 0, err
	}
	extproc, err = process.CPU(s.extproc)
	return envoy, extproc, err
}

func (t *tally) figures(n int) figures {
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	slices.Sort(t.took)
	at := func(q float64) float64 { return float64(t.took[int(q*float64(len(t.took)-1))].Microseconds()) / 1000 }
	f := figures{
		Envoy: per(t.envoy), ExtProc: per(t.extproc), Total: per(t.envoy + t.extproc),
		Rate: float64(n) / t.wall.Seconds(), P50: at(0.50), P99: at(0.99),
	}
	if t.seen[promptKey] > 0 {
		f.Reused = t.seen[reusedKey] / t.seen[promptKey]
	}
	return f
}
