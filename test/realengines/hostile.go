package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/bodies"
)

// hostileBodies is the number of bodies that are sent while the router answers, and again while it does not.
const hostileBodies = 400

// stranger is in every value of a client's transfer, and in none of the gateway's.
const stranger = "stranger.invalid"

// hostileRun is the run of one pair of engines.
type hostileRun struct {
	engines []*engine
	sent    []hostileRound
	// dangerous counts the bodies in which an engine would read a member of a transfer.
	dangerous int

	mu      sync.Mutex
	arrived [][]byte // bodies that the engines got; guarded by mu
}

// hostileRound has the results for one state of the router.
type hostileRound struct {
	router   string
	statuses map[int]int
	arrived  int // bodies
	read     int // bodies in which an engine reads a client's transfer
	alive    int // engines
}

func hostileSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	h := &hostileRun{}
	engines, err := b.startNixlPair(ctx)
	defer stopAll(engines)
	if err != nil {
		return err
	}
	h.engines = engines
	for _, e := range engines {
		f, err := startFront(e)
		if err != nil {
			return err
		}
		defer f.stop()
		f.onBody = h.keep
	}

	g, err := b.startGateway(ctx, engines, "{prefill: auto}")
	if err != nil {
		return err
	}
	defer g.Stop()
	python := filepath.Join(filepath.Dir(b.vllm), "python")
	for _, router := range []string{"answers", "stands still"} {
		if router != "answers" {
			_ = g.Signal(syscall.SIGSTOP)
			defer func() { _ = g.Signal(syscall.SIGCONT) }()
		}
		b.progressf("hostile: the router %s", router)
		if err := h.round(ctx, g, router, python); err != nil {
			return err
		}
	}
	h.print(p)
	return nil
}

// keep keeps a body that an engine gets.
func (h *hostileRun) keep(body []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arrived = append(h.arrived, bytes.Clone(body))
}

// round sends all bodies, and reads those that arrive as an engine does.
func (h *hostileRun) round(ctx context.Context, g *gateway, router, python string) error {
	reader, err := bodies.StartReader(ctx, python)
	if err != nil {
		return err
	}
	defer reader.Stop()
	made := bodies.Transfers{Model: modelName, Values: []string{
		`{"do_remote_prefill":true,"remote_host":"` + stranger + `","remote_port":9}`, `["` + stranger + `"]`, `"` + stranger + `"`,
		`{"do_remote_decode":true,"remote_engine_id":"` + stranger + `"}`,
	}}
	draw := rand.New(rand.NewPCG(29, uint64(len(h.sent))))
	r := hostileRound{router: router, statuses: map[int]int{}}

	for i := range hostileBodies {
		body := made.Body(draw)
		found, err := reader.Read(body)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			h.dangerous++
		}
		status, err := statusWithin(ctx, g.URL+bodies.Paths[i%len(bodies.Paths)], string(body))
		if err != nil {
			return err
		}
		r.statuses[status]++
	}

	h.mu.Lock()
	arrived := h.arrived
	h.arrived = nil
	h.mu.Unlock()
	r.arrived = len(arrived)
	for _, body := range arrived {
		found, err := reader.Read(body)
		if err != nil {
			return err
		}
		if strings.Contains(strings.Join(slices.Collect(maps.Values(found)), " "), stranger) {
			r.read++
		}
	}
	for _, e := range h.engines {
		if _, err := getText(ctx, "http://"+e.address+"/health"); err == nil {
			r.alive++
		}
	}
	h.sent = append(h.sent, r)
	return nil
}

// hostileWait is the time for which a client waits. A fault in a body may be in the length of its answer.
const hostileWait = 20 * time.Second

// statusWithin is statusOf for a client that leaves after hostileWait. Its status is 0.
func statusWithin(ctx context.Context, url, body string) (int, error) {
	waiting, stop := context.WithTimeout(ctx, hostileWait)
	defer stop()
	status, err := statusOf(waiting, url, body)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return 0, nil
	}
	return status, err
}

// print writes the section of the report.
func (h *hostileRun) print(p *page) {
	p.section("Hostile bodies before engines that transfer KV caches")
	p.text("Two vLLM with NixlConnector and roles, and `router.prefill: auto`. Clients send bodies with members of transfers: at the top, "+
		"in `vllm_xargs` and in `sampling_params.extra_args`, with escaped and repeated names, in UTF-8, UTF-16 and UTF-32, with and "+
		"without byte order marks, and with faults; on five paths of engines and another one. In %d of %d an engine would read such "+
		"a member. A client leaves after 20 s, with status 0. \"Read\" counts the bodies that reached an engine and in which Python's "+
		"decoder finds a client's member of a transfer.",
		h.dangerous, len(h.sent)*hostileBodies)
	p.writeRow("the router", "bodies", "answers by status", "bodies that engines got", "read", "engines alive")

	arrived, read := 0, 0
	alive := true
	for _, r := range h.sent {
		var counts []string
		for _, status := range slices.Sorted(maps.Keys(r.statuses)) {
			counts = append(counts, fmt.Sprintf("%d: %d", status, r.statuses[status]))
		}
		p.writeRow(r.router, hostileBodies, strings.Join(counts, ", "), r.arrived, r.read, r.alive)
		read += r.read
		alive = alive && r.alive == len(h.engines)
		arrived += r.arrived
	}
	p.endTable()

	p.bar("both engines are alive after each round", alive)
	p.bar("no engine reads a client's member of a transfer", read == 0)
	p.bar("engines got some of the bodies while the router answered, and none while it stood still",
		arrived > 0 && h.sent[1].arrived == 0)
	p.bar("at least half of the bodies were dangerous", 2*h.dangerous >= len(h.sent)*hostileBodies)
	p.b.WriteByte('\n')
}
