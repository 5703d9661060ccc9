package cachesync

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/test/testkit"
)

// TestScenarios runs testdata/*.txt in the fake time of testing/synctest. A block is a letter, which is
// also its engine's hash. All agents publish a mark every second. Verbs:
//
//	engine NAME [epoch=E] [remember=N] [no-snapshots]
//	                          starts an engine with an agent, which remembers the newest N batches
//	                          for replays (default: all), and puts the worker into the router's fleet
//	remove NAME               removes the worker from the router's fleet
//	publish NAME [lost|twice|late]
//	                          the engine publishes one batch, an event per line: "store abc",
//	                          "store bc after a", "remove c", "clear", "unknown"; late arrives after
//	                          the next batch
//	agent NAME silent|slow|detached|well
//	                          silent: the agent neither publishes marks nor answers
//	                          slow: it answers after a second
//	                          detached: it has no connection to its engine
//	bus down|up
//	start                     starts the router's syncer
//	wait DURATION
//	states                    prints the router's state of each rank, and the requests that agents
//	                          have answered
//	log                       prints the warnings since the last log
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			defer w.stop()
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				output := w.run(t, d)
				synctest.Wait()
				return output
			})
		})
	})
}

// world is one router and the agents of its workers.
type world struct {
	network *network
	fleet   *fleet.Fleet
	feed    *feed.Feed
	syncer  *Syncer
	log     testkit.Log
	late    []*feed.Message // batches that arrive after the next one

	ctx  context.Context
	stop func()
	all  sync.WaitGroup
}

func newWorld() *world {
	w := &world{network: newNetwork()}
	w.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { w.feed.RankGone(id) }})
	w.feed = feed.New(feed.Config{}, w.fleet, kvindex.New(kvindex.Config{}))

	handler := slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: dropTime})
	w.syncer = New(Config{
		Fleet: w.fleet, Feed: w.feed, Excluded: func(w string) bool { return w == "direct" },
		Log: slog.New(handler), Metrics: prometheus.NewRegistry(),
	})

	ctx, cancel := context.WithCancel(context.Background())
	w.ctx = ctx
	w.stop = func() { cancel(); w.all.Wait() }
	w.all.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.network.sendMarks()
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

func dropTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func (w *world) run(t *testing.T, d *datadriven.TestData) string {
	subject, word := "", ""
	if len(d.CmdArgs) > 0 {
		subject = d.CmdArgs[0].Key
	}
	if len(d.CmdArgs) > 1 {
		word = d.CmdArgs[1].Key
	}

	switch d.Cmd {
	case "engine":
		w.startEngine(t, d, subject)
	case "remove":
		w.fleet.Remove(subject)
	case "publish":
		w.publish(w.network.publish(subject, batch(t, d)), word)
	case "agent":
		a := w.network.agents[subject]
		w.network.mu.Lock()
		a.silent = word == "silent"
		a.slow = word == "slow"
		a.connect(word != "detached")
		w.network.mu.Unlock()
	case "bus":
		w.network.set(subject == "up")
		if subject == "down" {
			w.syncer.Disconnected()
		}
	case "start":
		w.all.Go(func() { _ = w.syncer.Run(w.ctx, w.network) })
	case "wait":
		pause, err := time.ParseDuration(subject)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		time.Sleep(pause)
	case "states":
		return w.states()
	case "log":
		text := w.log.String()
		w.log = testkit.Log{}
		return text
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

func (w *world) startEngine(t *testing.T, d *datadriven.TestData, name string) {
	numbers := map[string]int{"epoch": 1}
	snapshots := 0
	for _, a := range d.CmdArgs[1:] {
		switch {
		case a.Key == "no-snapshots":
			snapshots = -1
		default:
			n, err := strconv.Atoi(a.Vals[0])
			if err != nil {
				d.Fatalf(t, "%s: %v", a.Key, err)
			}
			numbers[a.Key] = n
		}
	}

	worker := fleet.Worker{
		Name: name, Model: "m", Address: "10.0.0.1:8000", Ranks: 1, Epoch: uint64(numbers["epoch"]), BlockSize: 16,
		State: fleet.Ready, KVEvents: "tcp://10.0.0.1:5557",
	}
	w.network.join(worker, numbers["remember"]).snapshots = snapshots
	if _, err := w.fleet.Put(worker); err != nil {
		d.Fatalf(t, "%v", err)
	}
}

// publish sends a batch as the scenario wants, and then those that are late.
func (w *world) publish(m *feed.Message, how string) {
	late := w.late
	w.late = nil
	switch how {
	case "lost":
	case "late":
		w.late = []*feed.Message{m}
	case "twice":
		w.network.send(m)
		w.network.send(m)
	default:
		w.network.send(m)
	}
	for _, m := range late {
		w.network.send(m)
	}
}

func (w *world) states() string {
	w.network.mu.Lock()
	defer w.network.mu.Unlock()

	var b strings.Builder
	for _, s := range w.feed.States() {
		fmt.Fprintf(&b, "%s %s", s.Worker, s.State)
		if s.Batches > 0 || s.Seq > 0 {
			fmt.Fprintf(&b, " seq %d", s.Seq)
		}
		a := w.network.agents[s.Worker]
		fmt.Fprintf(&b, ", %d blocks; %d replays, %d snapshots\n", s.Blocks, a.replays, max(0, a.snapshots))
	}
	return b.String()
}

// batch reads the events of a batch.
func batch(t *testing.T, d *datadriven.TestData) *kvevent.Batch {
	b := &kvevent.Batch{}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		e := kvevent.Event{BlockSize: 16}
		switch words[0] {
		case "store":
			if len(words) == 4 {
				e.Parent, e.HasParent = kvevent.EngineHash(words[3][0]), true
			}
		case "remove":
			e.Kind = kvevent.Removed
		case "clear":
			e.Kind = kvevent.Cleared
			words = append(words, "")
		case "unknown":
			b.Unknown++
			continue
		default:
			d.Fatalf(t, "unknown event %s", words[0])
		}
		for _, c := range []byte(words[1]) {
			e.Hashes = append(e.Hashes, kvevent.EngineHash(c))
			if e.Kind == kvevent.Stored {
				e.Blocks = append(e.Blocks, blockhash.Block(c))
			}
		}
		b.Events = append(b.Events, e)
	}
	return b
}
