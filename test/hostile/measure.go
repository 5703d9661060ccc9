package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/test/process"
)

// mostMemory bounds this process, so that a template that is not bounded ends this program and not the machine.
const mostMemory = 4 << 30

func limitMemory() error {
	limit := syscall.Rlimit{Cur: mostMemory, Max: mostMemory}
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &limit); err != nil {
		return fmt.Errorf("limit the memory of this process: %w", err)
	}
	return nil
}

// state has the router's resources when it has nothing to do.
type state struct {
	rss                          int64 // bytes
	bookings, queued, goroutines float64
	panics                       float64 // requests
}

const (
	rssSlack = 20 << 20
	// goroutineSlack is for connections of Envoy that come and go.
	goroutineSlack = 8
	// settleTime is the longest time in which the Go runtime gives memory back.
	settleTime = 60 * time.Second
)

// problems lists resources that are held now and were not before.
func (a state) problems(before state) (list []string) {
	if a.rss > before.rss+rssSlack {
		list = append(list, fmt.Sprintf("RSS has grown by %.0f MB", megabytes(a.rss-before.rss)))
	}
	if a.bookings != 0 || a.queued != 0 {
		list = append(list, fmt.Sprintf("%.0f bookings and %.0f queued requests are left", a.bookings, a.queued))
	}
	if a.goroutines > before.goroutines+goroutineSlack {
		list = append(list, fmt.Sprintf("%.0f goroutines are left, %.0f before", a.goroutines, before.goroutines))
	}
	if a.panics > 0 {
		list = append(list, fmt.Sprintf("%.0f requests caused a panic", a.panics))
	}
	return list
}

// settled reads the router's state before the first case, after some ordinary requests: caches that are made with
// the first request belong to the program.
func (s *stack) settled(ctx context.Context) (state, error) {
	var clients sync.WaitGroup
	for i := range 32 {
		clients.Go(func() {
			text := strings.Repeat(fmt.Sprintf("ordinary words of client %d. ", i), 200)
			s.status(ctx, []byte(chatWith("messages", fmt.Sprintf(`[{"role":"user","content":%q}]`, text))))
		})
	}
	clients.Wait()
	if err := backoff.Sleep(ctx, time.Second); err != nil {
		return state{}, err
	}
	return s.state(ctx)
}

// left waits until nothing is left that was not there before, or until settleTime is over.
func (s *stack) left(ctx context.Context, before state) (state, error) {
	for deadline := time.Now().Add(settleTime); ; {
		now, err := s.state(ctx)
		if err != nil || len(now.problems(before)) == 0 || time.Now().After(deadline) {
			return now, err
		}
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return now, err
		}
	}
}

// state reads the router's resources after a garbage collection.
func (s *stack) state(ctx context.Context) (now state, err error) {
	if _, err := s.page(ctx, "/debug/pprof/heap?gc=1"); err != nil {
		return now, err
	}
	m, err := s.metrics(ctx)
	if err != nil {
		return now, err
	}
	now = state{
		bookings: m.Sum("stator_route_bookings"), queued: m.Sum("stator_route_queue_requests"), goroutines: m.Sum("go_goroutines"),
		panics: m.Sum("stator_extproc_requests_total", "outcome", "panic"),
	}
	now.rss, err = process.Resident(s.router)
	return now, err
}

// metrics reads the router's metrics.
func (s *stack) metrics(ctx context.Context) (metric.Samples, error) {
	text, err := s.page(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return metric.Read(bytes.NewReader(text))
}

// page reads one of the router's admin pages.
func (s *stack) page(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the router does not answer: %w\n%s", err, s.log.String())
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(resp.Body)
}

// used has the time and memory of a case.
type used struct {
	cpu, wall time.Duration
	bytes     int64
}

// ofRouter measures the router's time and memory while f runs.
func (s *stack) ofRouter(ctx context.Context, f func() error) (used, error) {
	m, err := s.metrics(ctx)
	if err != nil {
		return used{}, err
	}
	allocated := m.Sum("go_memstats_alloc_bytes_total")
	cpu, err := process.ThreadsCPU(s.router)
	if err != nil {
		return used{}, err
	}

	began := time.Now()
	err = f()
	wall := time.Since(began)

	after, failed := process.ThreadsCPU(s.router)
	if failed != nil {
		return used{}, failed
	}
	m, failed = s.metrics(ctx)
	if failed != nil {
		return used{}, failed
	}
	return used{cpu: after - cpu, wall: wall, bytes: int64(m.Sum("go_memstats_alloc_bytes_total") - allocated)}, err
}

// ofCall measures what this process spends while f runs.
func ofCall(f func() error) (used, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := process.OwnCPU()
	err := f()
	spent := process.OwnCPU() - cpu
	runtime.ReadMemStats(&after)
	return used{cpu: spent, bytes: int64(after.TotalAlloc - before.TotalAlloc)}, err
}
