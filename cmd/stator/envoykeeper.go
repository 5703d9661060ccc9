package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/envoy"
	"github.com/stator-project/stator/xds"
)

type envoyConfig struct {
	path, dir, xds string
	concurrency    int
	log            *slog.Logger
	drain          time.Duration
	hard           context.Context
	ended          func() // called when an Envoy has ended
}

// envoyKeeper keeps one Envoy alive and stops it last but gently.
type envoyKeeper struct {
	cfg envoyConfig

	mu       sync.Mutex
	proc     *envoy.Process // guarded by mu
	ready    bool           // guarded by mu
	stopping bool           // guarded by mu
	began    time.Time      // guarded by mu
	took     time.Duration  // guarded by mu; from start to ready
}

func newEnvoyKeeper(cfg envoyConfig) *envoyKeeper { return &envoyKeeper{cfg: cfg} }

// maxFailures is how often Envoy may end in a row without having been ready.
const maxFailures = 3

// run keeps Envoy alive until stop. It gives up on one that never becomes ready.
func (k *envoyKeeper) run(ctx context.Context) error {
	for failures := 0; ; {
		wasReady, err := k.once(ctx)
		if k.isStopping() {
			return nil
		}
		if wasReady {
			failures = 0
		}
		if failures++; failures >= maxFailures {
			return fmt.Errorf("envoy does not stay up: %w", err)
		}
		k.cfg.log.Warn("envoy ended; starting it again", "err", err)
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *envoyKeeper) once(ctx context.Context) (wasReady bool, err error) {
	boot, err := xds.Bootstrap(xds.BootstrapSettings{NodeID: "gateway-0", Admin: "127.0.0.1:0", XDS: k.cfg.xds})
	if err != nil {
		return false, err
	}
	p, err := k.start(boot)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ready := make(chan bool, 1)
	go func() {
		ok := p.WaitReady(ctx) == nil
		if ok {
			k.mark()
		}
		ready <- ok
	}()
	err = p.Run()
	k.cfg.ended()
	cancel()
	k.mu.Lock()
	k.proc, k.ready = nil, false
	k.mu.Unlock()
	return <-ready, err
}

func (k *envoyKeeper) start(boot []byte) (*envoy.Process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopping {
		return nil, errors.New("stopping")
	}
	p, err := envoy.Start(envoy.Config{Path: k.cfg.path, Bootstrap: boot, Dir: k.cfg.dir, Concurrency: k.cfg.concurrency, Log: k.cfg.log})
	if err != nil {
		return nil, err
	}
	k.proc, k.began = p, time.Now()
	return p, nil
}

func (k *envoyKeeper) mark() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ready, k.took = true, time.Since(k.began)
}

func (k *envoyKeeper) isStopping() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopping
}

// readiness describes a ready Envoy.
func (k *envoyKeeper) readiness() (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ready || k.proc == nil {
		return "", errors.New("it has no listener yet")
	}
	return fmt.Sprintf("%s (pid %d, started in %.2f s)", k.cfg.path, k.proc.PID(), k.took.Seconds()), nil
}

// healthyWorkers is how many workers of a model Envoy would send requests to; 0 where it
// cannot be asked.
func (k *envoyKeeper) healthyWorkers(model string) int {
	k.mu.Lock()
	p := k.proc
	k.mu.Unlock()
	if p == nil {
		return 0
	}
	n, err := p.Stat(k.cfg.hard, "cluster."+xds.PoolName(model)+".membership_healthy")
	if err != nil {
		return 0
	}
	return n
}

// stop drains Envoy for as long as it may take, then ends it. It returns when it is gone.
func (k *envoyKeeper) stop() {
	k.mu.Lock()
	k.stopping = true
	p := k.proc
	k.mu.Unlock()
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(k.cfg.hard, k.cfg.drain)
	defer cancel()
	p.Drain(ctx)
	p.Stop(k.cfg.hard)
}
