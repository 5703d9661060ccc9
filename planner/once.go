package planner

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

// Once makes one plan, from observations of one interval, as soon as ready returns true. Without done it changes nothing. With done it
// waits until this planner leads, publishes the plan, and has the connector carry it out until done returns true.
func (p *Planner) Once(ctx context.Context, ready, done func() bool) error {
	return p.run(ctx, func(ctx context.Context) error {
		var leading sync.WaitGroup
		defer leading.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		if done != nil {
			leading.Go(func() { _ = p.cfg.Bus.Lead(ctx, p.lead) })
			if err := p.awaitLead(ctx); err != nil {
				return err
			}
		}

		p.observe(ctx, false) // figures count from here on
		for waited := time.Duration(0); waited < p.cfg.Interval || !ready(); waited += together {
			if err := backoff.Sleep(ctx, together); err != nil {
				return err
			}
		}
		for p.once(ctx, false); done != nil && !done(); p.publish(ctx, p.Current()) {
			err := backoff.Sleep(ctx, again)
			if err == nil && p.term.Load() == 0 {
				err = errors.New("another planner leads now")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// again is the interval at which a single plan is handed to the connector: a planner that leads still wants it.
const again = time.Second

// leadFor is the longest wait for the lead: leases of planners that have died expire sooner.
const leadFor = 30 * time.Second

// awaitLead waits until this planner leads.
func (p *Planner) awaitLead(ctx context.Context) error {
	wait, stop := context.WithTimeout(ctx, leadFor)
	defer stop()
	select {
	case <-p.leads:
		return nil
	case <-wait.Done():
		return cmp.Or(ctx.Err(), errors.New("another planner leads, and carries plans out: stop it, or have this one change nothing"))
	}
}
