package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/xds"
)

// envoys are the Envoys of stator up. They listen on the same ports, and the kernel gives each new connection to one of them. When one
// has ended, the others get all.
type envoys []*envoy.Supervisor

// maxEnvoys bounds --envoys.
const maxEnvoys = 16

// makeEnvoys creates the Envoys. Each has a folder, because its bootstrap, its admin socket and its memory's pressure are files there.
func (u *up) makeEnvoys(path string) error {
	for i := range u.flags.envoys {
		node := fmt.Sprintf("%s%d", nodePrefix, i)
		dir := filepath.Join(u.dir, node)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		boot, err := xds.Bootstrap(xds.BootstrapSettings{
			NodeID: node, Admin: "unix://" + filepath.Join(dir, "admin.sock"), XDS: u.socket("xds"),
			MaxConnections: u.cfg.Gateway.MaxConnections, PressureFile: envoy.PressureFile(dir), MaxHeapBytes: u.cfg.Gateway.MaxHeapBytes,
		})
		if err != nil {
			return err
		}
		u.envoys = append(u.envoys, envoy.NewSupervisor(envoy.SupervisorConfig{
			Config: envoy.Config{Path: path, Bootstrap: boot, Dir: dir, Concurrency: u.flags.concurrency,
				MaxConnections: u.cfg.Gateway.MaxConnections, Log: u.log.With("envoy", node), Out: u.env.out},
			DrainTime: u.flags.drain, Hard: u.env.hard,
			// An Envoy that has ended sends no more access-log entries, so its bookings end here.
			Ended: func() { u.router.Routes().EndBefore(node, time.Now()) },
		}))
	}
	return nil
}

// run returns when the first Envoy cannot be kept running, or when all were stopped.
func (e envoys) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(e))
	for _, s := range e {
		go func() { ended <- s.Run(ctx) }()
	}

	var first error
	var stopping sync.WaitGroup
	for range e {
		if err := <-ended; err != nil && first == nil {
			first = err
			cancel()
			stopping.Go(e.stop) // the other calls of Run return when their Envoys have ended
		}
	}
	stopping.Wait()
	return first
}

// stop drains all Envoys at the same time, and ends them.
func (e envoys) stop() {
	var all sync.WaitGroup
	for _, s := range e {
		all.Go(s.Stop)
	}
	all.Wait()
}

// ready describes the Envoys that serve and have a healthy worker of each model. The error is the reason of one that does not.
func (e envoys) ready(models []config.Model) (serving int, text string, err error) {
	var texts []string
	for _, s := range e {
		one, notYet := s.Ready()
		for i := 0; i < len(models) && notYet == nil; i++ {
			if s.HealthyMembers(xds.PoolName(models[i].Name)) == 0 {
				notYet = fmt.Errorf("it has no worker of model %s yet", models[i].Name)
			}
		}
		if notYet != nil {
			err = notYet
			continue
		}
		if len(texts) > 0 { // the path is that of the first one
			one = one[strings.LastIndex(one, "("):]
		}
		texts = append(texts, one)
	}
	return len(texts), strings.Join(texts, ", "), err
}

// missing is an error if one of several Envoys is not ready. The others serve.
func (e envoys) missing() error {
	for i, s := range e {
		if _, err := s.Ready(); err != nil && len(e) > 1 {
			return fmt.Errorf("envoy %d of %d (numbered from 0): %w", i, len(e), err)
		}
	}
	return nil
}

// metrics returns the metrics of the Envoy with a number, from 0 on.
func (e envoys) metrics(ctx context.Context, number int) (string, error) {
	if number < 0 || number >= len(e) {
		return "", fmt.Errorf("there is no Envoy %d: this process runs %d, numbered from 0", number, len(e))
	}
	return e[number].Metrics(ctx)
}

// replaceOnSignal replaces the Envoys, one after the other, each time that the process gets SIGUSR1: so the program at --envoy may be
// a newer one. A further signal meanwhile replaces them once more.
func (u *up) replaceOnSignal(ctx context.Context) error {
	in := make(chan os.Signal, 1)
	signal.Notify(in, syscall.SIGUSR1)
	defer signal.Stop(in)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-in:
		}
		if len(u.envoys) == 1 {
			u.log.Warn("the only Envoy is replaced: clients are refused until the new one is ready; --envoys 2 avoids that")
		}
		if err := u.envoys.replace(ctx); err != nil && ctx.Err() == nil {
			u.log.Error("envoys not replaced", "err", err)
		}
	}
}

// replacedWithin bounds the time until a replaced Envoy is ready.
const replacedWithin = time.Minute

// replace drains each Envoy, ends it, and waits until the next process in its place is ready.
func (e envoys) replace(ctx context.Context) error {
	for i, s := range e {
		s.Restart()
		deadline := time.Now().Add(replacedWithin)
		for {
			_, err := s.Ready()
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("envoy %d is not ready after %v: %w; the ones after it were left as they are", i, replacedWithin, err)
			}
			if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}
