package feed_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

type world struct {
	fleet    *fleet.Fleet
	size     int // the router's block size
	index    *kvindex.Index
	feed     *feed.Feed
	now      time.Time
	snapshot feed.Snapshot
}

func newWorld() *world {
	w := &world{index: kvindex.New(kvindex.Config{}), now: time.Unix(1000, 0), size: 16}
	w.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { w.feed.RankGone(id) }})
	w.feed = feed.New(feed.Config{BlockSize: func(*fleet.Worker) int { return w.size }}, w.fleet, w.index)
	return w
}

// TestScenarios runs testdata/*.txt. A block is a letter, which is also its engine's hash.
// Verbs:
//
//	worker NAME [epoch=E]           puts a worker with one rank and block size 16 into the fleet
//	remove NAME                     removes it from the fleet
//	batch NAME seq=N [epoch=E] [at=SECONDS] [size=TOKENS] [window=TOKENS] [state=S] [caughtup=1]
//	                                applies a batch, one event per line: "store abc", "store bc after a",
//	                                "remove c", "clear", "unknown"; at is the engine's clock. Prints the
//	                                replay that Apply requires. S is the number of the rank's state at its
//	                                agent: 0 none, 1 syncing, 2 exact, 3 stale. The default is none. caughtup=1
//	                                means that the agent has all batches since some number.
//	mark NAME next=N [epoch=E] [state=S] [end=1] [caughtup=1]
//	                                applies a mark: the rank's next batch is N, and it is exact at its
//	                                agent unless S is given. With end=1 it is the agent's answer to a request.
//	                                Prints the replay that Apply requires.
//	connected NAME up=0|1           reports that the source's connection was lost or made
//	restarted NAME                  reports a new engine process in the same epoch
//	forget NAME                     empties the rank because its blocks are wrong
//	snapshot NAME                   makes a snapshot and keeps it
//	restore NAME [epoch=E] [size=TOKENS]
//	                                restores the kept snapshot; prints the error
//	lost NAME                       reports that events have stopped arriving
//	reload size=TOKENS              changes the router's block size
//	garble                          makes the kept snapshot unreadable
//	wait SECONDS
//	lookup                          letters: prints how many blocks of that prompt each worker stores
//	emptied NAME | missed NAME [since=SECONDS]
//	states | lifetime NAME | counts NAME
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		w := newWorld()
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string { return w.act(t, d) })
	})
}

func (w *world) act(t *testing.T, d *datadriven.TestData) string {
	argOr := func(key string, otherwise int) int {
		for _, a := range d.CmdArgs {
			if a.Key == key {
				n, err := strconv.Atoi(a.Vals[0])
				if err != nil {
					d.Fatalf(t, "%s: %v", key, err)
				}
				return n
			}
		}
		return otherwise
	}
	arg := func(key string) int { return argOr(key, 0) }
	subject := ""
	if len(d.CmdArgs) > 0 {
		subject = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "worker":
		if _, err := w.fleet.Put(fleet.Worker{Name: subject, Model: "m", Address: "10.0.0.1:8000", Ranks: 1, Epoch: uint64(arg("epoch")), BlockSize: 16}); err != nil {
			d.Fatalf(t, "%v", err)
		}
	case "remove":
		w.fleet.Remove(subject)
	case "batch":
		b := batch(t, d)
		b.Seconds = float64(arg("at"))
		return w.apply(&feed.Message{Worker: subject, Epoch: uint64(arg("epoch")), Seq: uint64(arg("seq")), State: feed.State(arg("state")),
			CaughtUp: arg("caughtup") == 1, Batch: b})
	case "mark":
		state := feed.State(argOr("state", int(feed.Exact)))
		return w.apply(&feed.Message{Worker: subject, Epoch: uint64(arg("epoch")), Seq: uint64(arg("next")), Mark: true, State: state,
			End: argOr("end", 0) == 1, CaughtUp: arg("caughtup") == 1})
	case "connected":
		w.feed.Connected(subject, 0, arg("up") == 1)
	case "restarted":
		w.feed.Restarted(subject, 0)
	case "forget":
		w.feed.Forget(subject, 0)
	case "emptied":
		w.feed.Emptied(subject, 0)
	case "missed":
		since := w.now.Add(-time.Duration(arg("since")) * time.Second)
		return fmt.Sprintf("emptied %v\n", w.feed.Missed(subject, 0, since))
	case "snapshot":
		s, ok := w.feed.Snapshot(subject, uint64(arg("epoch")), 0)
		if !ok {
			return "no snapshot\n"
		}
		w.snapshot = s
		return fmt.Sprintf("next %d, complete %v\n", s.Next, s.Complete)
	case "restore":
		s := w.snapshot
		s.Worker, s.Epoch = subject, uint64(arg("epoch"))
		if n := arg("size"); n != 0 {
			s.BlockSize = n
		}
		if err := w.feed.Restore(&s, w.now); err != nil {
			return err.Error() + "\n"
		}
	case "lost":
		w.feed.Lost(subject, 0)
	case "reload":
		w.size = arg("size")
	case "garble":
		w.snapshot.Dump = []byte("not a dump")
	case "wait":
		n, _ := strconv.Atoi(subject)
		w.now = w.now.Add(time.Duration(n) * time.Second)
	case "lookup":
		return w.lookup(d.Input)
	case "states":
		return w.feed.String()
	case "lifetime":
		m, _ := w.fleet.Snapshot().Rank(subject, 0)
		return fmt.Sprintln(w.feed.Lifetime(m))
	case "counts":
		for _, s := range w.feed.States() {
			if s.Worker == subject {
				return strings.ReplaceAll(fmt.Sprintf("%+v\n", s.Counts), ":", " ")
			}
		}
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

// apply applies a message, and prints the replay that it needs.
func (w *world) apply(m *feed.Message) string {
	result := w.feed.Apply(m, w.now)
	if result.Verdict == feed.Missing {
		return fmt.Sprintf("gap: replay from %d\n", result.Resume)
	}
	return ""
}

func batch(t *testing.T, d *datadriven.TestData) *kvevent.Batch {
	b := &kvevent.Batch{}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		e := kvevent.Event{BlockSize: 16}
		for _, a := range d.CmdArgs {
			if a.Key == "size" {
				e.BlockSize, _ = strconv.Atoi(a.Vals[0])
			}
			if a.Key == "window" {
				e.Window, _ = strconv.Atoi(a.Vals[0])
			}
			if a.Key == "group" {
				e.Group, _ = strconv.Atoi(a.Vals[0])
			}
		}
		switch words[0] {
		case "store":
			e.Kind = kvevent.Stored
			if len(words) == 4 {
				e.Parent, e.HasParent = kvevent.EngineHash(words[3][0]), true
			}
		case "remove":
			e.Kind = kvevent.Removed
		case "unknown":
			b.Unknown++
			continue
		case "clear":
			e.Kind = kvevent.Cleared
			words = append(words, "")
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

func (w *world) lookup(letters string) string {
	var blocks []blockhash.Block
	for _, c := range []byte(strings.TrimSpace(letters)) {
		blocks = append(blocks, blockhash.Block(c))
	}
	var out kvindex.Overlap
	w.index.Lookup(blocks, &out)
	text := ""
	for _, m := range w.fleet.Snapshot().Ranks {
		text += fmt.Sprintf("%s %d\n", m.Worker.Name, out.Of(m.ID)[fleet.Device])
	}
	return text
}

// TestEventsOfAnEndedEpochAreDropped applies batches while the worker restarts. None of them may be
// stored for the next owner of the rank's ID.
func TestEventsOfAnEndedEpochAreDropped(t *testing.T) {
	w := newWorld()
	put := func(epoch uint64) {
		if _, err := w.fleet.Put(fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:8000", Ranks: 1, Epoch: epoch}); err != nil {
			t.Error(err)
		}
	}
	b := &kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Stored, Hashes: []kvevent.EngineHash{1}, Blocks: []blockhash.Block{1}}}}
	put(1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for epoch := uint64(2); epoch <= 300; epoch++ {
			put(epoch)
		}
	})
	wg.Go(func() {
		for i := range uint64(20_000) {
			w.feed.Apply(&feed.Message{Worker: "a", Epoch: 1 + i%300, Batch: b}, w.now)
		}
	})
	wg.Wait()
	put(1000)
	if got := w.lookup("\x01"); got != "a 0\n" {
		t.Errorf("the new epoch stores %q", got)
	}
}
