package sockets

import (
	"context"
	"net/http"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
)

// followLength keeps the MaxModelLen of a worker in the fleet as its engine reports it, until ctx ends. The engine is
// asked again after its answer, because it may restart with another setting. An engine that never answers has no length,
// and is as ready as before.
func (c Config) followLength(ctx context.Context, w fleet.Worker) {
	client := &http.Client{Timeout: discoverTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()

	retry := backoff.Backoff{Min: discoverSoon, Max: discoverAgain}
	for ctx.Err() == nil {
		length, err := engineprobe.MaxModelLen(ctx, client, "http://"+w.Address)
		if err != nil {
			_ = retry.Wait(ctx) // it may be starting; the last length stays
			continue
		}

		// The worker is the same in all else, so Put keeps its ranks with their bookings and caches.
		retry.Reset()
		w.MaxModelLen = length
		if _, err := c.Fleet.Put(w); err != nil {
			c.Log.Error("context length not used", "worker", w.Name, "err", err)
		}
		_ = backoff.Sleep(ctx, discoverAgain)
	}
}
