package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

// announce prints when each part is ready, and then requests to try. It returns when the user stops the
// program, which ends all other parts.
func (u *up) announce(user, part context.Context) error {
	ctx, cancel := context.WithCancel(user)
	defer cancel()
	defer context.AfterFunc(part, cancel)()
	u.console.ready("extproc", u.socket("extproc"))
	u.console.ready("xds", u.socket("xds"))
	u.console.ready("planner", plannerText(&u.cfg.Planner))
	u.console.ready("admin", u.admin.url())
	if u.await(ctx, "workers", u.workersReady) && u.await(ctx, "envoy", u.envoyReady) {
		if u.own != nil {
			u.console.inviteOwn(u.cfg, u.admin.address())
		} else {
			u.console.invite(u.cfg, u.admin.address())
		}
	}
	<-ctx.Done()
	return nil
}

// await polls done until it returns no error, and prints that the part is ready. It prints the error after ten
// seconds. It returns false when ctx ends first.
func (u *up) await(ctx context.Context, part string, done func() (string, error)) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	patience := time.NewTicker(10 * time.Second)
	defer patience.Stop()
	for {
		text, err := done()
		if err == nil {
			u.console.ready(part, text)
			return true
		}
		select {
		case <-tick.C:
		case <-patience.C:
			u.console.waiting(part, err)
		case <-ctx.Done():
			return false
		}
	}
}

// envoyReady returns an error until all Envoys serve and have a healthy worker of every model that is not idle.
func (u *up) envoyReady() (string, error) {
	_, text, err := u.envoys.ready(u.busyModels())
	return text, err
}

// busyModels returns the models that should have a worker.
func (u *up) busyModels() (list []config.Model) {
	for i := range u.cfg.Models {
		if m := &u.cfg.Models[i]; !u.router.Idle(m.Name) {
			list = append(list, *m)
		}
	}
	return list
}

// loading describes the first engine that is not ready: how far it has loaded, or why it has failed. It is empty if
// that is not known.
func (u *up) loading() string {
	if u.agent == nil {
		return ""
	}
	for _, e := range u.agent.Status() {
		switch {
		case e.Phase != "":
			return fmt.Sprintf("; %s: %s", e.Worker, e.Phase)
		case e.State != fleet.Ready && !e.Stopped && e.Remedy != "":
			return fmt.Sprintf("; %s has failed %d times: %s", e.Worker, e.Failures, e.Remedy)
		}
	}
	return ""
}

// workersReady returns an error until all workers are ready: the workers that the configuration lists, the engines of --to, and the
// workers that the agent should run.
func (u *up) workersReady() (string, error) {
	ready, total := 0, u.agent.Wanted()+len(u.cfg.Found)
	for _, w := range u.router.Fleet().Snapshot().Workers {
		if w.State == fleet.Ready {
			ready++
		}
	}
	for _, m := range u.cfg.Models {
		total += len(m.Workers)
	}
	if ready < total {
		text := fmt.Sprintf("%d of %d ready", ready, total)
		if unready := u.router.Fleet().Snapshot().Unready(""); unready != "" {
			text += ": " + unready
		}
		return "", errors.New(text + u.loading())
	}
	return fmt.Sprintf("%d of %d", ready, total), nil
}
