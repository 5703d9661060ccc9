package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// fault is something that happens to a part. do returns when it is over.
type fault struct {
	name string
	do   func(ctx context.Context, c *cluster) error
}

// play plays a fault. An error is one of the harness: a part cannot be found or started.
func (c *cluster) play(ctx context.Context, f fault) error {
	if err := f.do(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return nil
}

// faults returns all faults. A part of several is chosen at random.
func faults() (list []fault) {
	kinds := []struct {
		name string
		n    int
	}{{"router", routers}, {"xds", planes}, {"planner", planners}, {"bus", 1}, {"agent", nodes}, {"line", lines}, {"envoy", envoys}}
	for _, k := range kinds {
		list = append(list, fault{"kill " + k.name, func(_ context.Context, c *cluster) error { return c.kill(c.mortal(k.name, k.n)) }})
		for _, d := range []time.Duration{5 * time.Second, 30 * time.Second} {
			list = append(list, fault{fmt.Sprint("stop ", k.name, " for ", d), func(ctx context.Context, c *cluster) error {
				return freeze(ctx, c.parts[c.pick(k.name, k.n)].PID(), d)
			}})
		}
	}

	list = append(list,
		fault{"kill engine", func(_ context.Context, c *cluster) error {
			pid, err := c.enginePID(c.random(nodes), c.random(enginesPerNode))
			if err != nil || pid == 0 {
				return err
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		}},
		fault{"stop engine for 5s", func(ctx context.Context, c *cluster) error {
			pid, err := c.enginePID(c.random(nodes), c.random(enginesPerNode))
			if err != nil || pid == 0 {
				return err
			}
			return freeze(ctx, pid, 5*time.Second)
		}},
		fault{"restart router", func(_ context.Context, c *cluster) error { return c.restart(c.mortal("router", routers)) }},
		fault{"router's disk stands still", func(ctx context.Context, c *cluster) error {
			d := c.disks[c.random(routers)]
			d.gate.Lock()
			defer d.gate.Unlock()
			return sleep(ctx, 5*time.Second)
		}},
		fault{"router's disk is full", func(ctx context.Context, c *cluster) error {
			name := c.mortal("router", routers)
			d := c.disks[0]
			if err := d.setFull(true); err != nil {
				return err
			}
			err := c.restart(name)
			if err == nil {
				err = sleep(ctx, 5*time.Second)
			}
			return errors.Join(err, d.setFull(false), c.restart(name))
		}},
	)

	for _, f := range busFaults {
		list = append(list, fault{"bus " + f.name, func(ctx context.Context, c *cluster) error {
			b := c.bus[c.random(routers)]
			b.Set(f.fault(rand.New(rand.NewPCG(c.rng.Uint64(), 3))))
			b.Refuse(f.cut)
			defer b.Set(nil)
			defer b.Refuse(false)
			return sleep(ctx, 5*time.Second)
		}})
	}
	for _, m := range misbehaviours {
		list = append(list, fault{"line " + m.name, func(ctx context.Context, c *cluster) error {
			l := c.lines[c.random(lines)]
			l.set(m)
			defer l.set(misbehaviour{})
			return sleep(ctx, 5*time.Second)
		}})
	}
	return list
}

// pick returns the name of one of n parts of a kind.
func (c *cluster) pick(kind string, n int) string {
	if n == 1 {
		return kind
	}
	return fmt.Sprint(kind, " ", c.random(n))
}

// mortal returns the name of a part that a fault may end. That is the first router always: the other one lives for the whole run, so that
// growth of its memory shows.
func (c *cluster) mortal(kind string, n int) string {
	name := c.pick(kind, n)
	if kind == "router" {
		return "router 0"
	}
	return name
}

// kill kills a part, and starts it again after a second.
func (c *cluster) kill(name string) error {
	p := c.parts[name]
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		return err
	}
	p.Stop()
	time.Sleep(time.Second)
	return c.begin(name)
}

// restart ends a part as a service would, and starts it again.
func (c *cluster) restart(name string) error {
	c.parts[name].Stop()
	return c.begin(name)
}

// freeze stops a process for a time.
func freeze(ctx context.Context, pid int, d time.Duration) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	err := sleep(ctx, d)
	if more := syscall.Kill(pid, syscall.SIGCONT); err == nil {
		err = more
	}
	return err
}
