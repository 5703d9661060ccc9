package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// ringOfDecisions is the number of decisions that a router keeps.
	ringOfDecisions = 4096
	// warmClients is the number of requests at a time while caches fill up.
	warmClients = 16
	// warmWithin bounds the time for it.
	warmWithin = 10 * time.Minute
)

// warmUp sends prompts until both routers hold as many decisions and prompts as they may, and engines as many blocks: memory that grows
// after that does not fill a cache with a bound.
func (r *run) warmUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, warmWithin)
	defer cancel()
	sending, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	var next atomic.Int64
	for range warmClients {
		all.Go(func() {
			for sending.Err() == nil {
				text := strings.Repeat("The harbour was quiet and the tide was low. ", 20)
				body := fmt.Appendf(nil, `{"model":"sim","messages":[{"role":"user","content":"Prompt %d of seed %d. %s"}],"max_tokens":1}`,
					next.Add(1), r.seed, text)
				_, _ = r.load.sendAgain(sending, body) // a request that fails fills nothing
			}
		})
	}

	for {
		full := true
		for i, admin := range r.cluster.admins {
			decisions, err := r.cluster.sample(ctx, admin, "stator_extproc_prompt_blocks_count")
			if err != nil {
				return fmt.Errorf("fill the caches of router %d: %w", i, err)
			}
			evicted, err := r.cluster.sample(ctx, admin, "stator_prompt_memory_evictions_total")
			if err != nil {
				return fmt.Errorf("fill the caches of router %d: %w", i, err)
			}
			full = full && decisions > ringOfDecisions && evicted > 0
		}
		if full {
			fmt.Fprintf(r.progress, "chaos: the routers' caches are full after %d requests\n", next.Load())
			return nil
		}
		if err := sleep(ctx, time.Second); err != nil {
			return fmt.Errorf("fill the caches of routers: %w", err)
		}
	}
}
