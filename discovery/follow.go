package discovery

import (
	"context"
	"sync"

	"github.com/stator-project/stator/internal/fleet"
)

// follow runs a goroutine for each key that wanted returns, such as an engine that is asked, and ends the goroutines of other
// keys. It calls wanted again after every change of the fleet. It returns when ctx has ended and all goroutines have
// returned.
func follow[K comparable](ctx context.Context, members *fleet.Fleet, wanted func() map[K]bool, run func(context.Context, K)) {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	running := map[K]context.CancelFunc{}
	for {
		changed := members.Changed()
		keys := wanted()
		for key, end := range running {
			if !keys[key] {
				end()
				delete(running, key)
			}
		}
		for key := range keys {
			if running[key] == nil {
				inner, end := context.WithCancel(ctx)
				running[key] = end
				all.Go(func() { run(inner, key) })
			}
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
