package scenario

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestAgentReturnsToALongLife kills the agent of an engine that has published more events than it can replay, and starts it again: the
// engine publishes while the agent is away, and then no more. The bus stands still for a while after the agent's start. The router's cache
// state is exact again, and so is a new router's if the agent has saved the cache.
func TestAgentReturnsToALongLife(t *testing.T) {
	t.Parallel()
	for name, saved := range map[string]bool{"saved": true, "not saved": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			returnToALongLife(t, saved)
		})
	}
}

func returnToALongLife(t *testing.T, saved bool) {
	state := t.TempDir()
	p := startPartsWith(t, 1, ", survive: true, args: {engineSpeedup: 1000}", "--state-dir", state)
	t.Cleanup(func() {
		p.agent.kill()
		p.stopEngines(state)
	})
	engine := p.survivor(state)

	const replayable = 10_000 // messages, in the simulated engine as in vLLM
	for p.feedSeq() < replayable+500 {
		answerAtLength(t, engine, 4000)
		p.awaitEvents()
	}
	eventually(t, "caches are known exactly", p.knowledge("exact", 1))
	// An agent saves seldom. The engine can replay only what follows a new file.
	full := time.Now()
	eventually(t, "the agent has saved the cache", func() error {
		file, err := os.Stat(filepath.Join(state, "caches", "sim-0", "0"))
		if err == nil && file.ModTime().Before(full) {
			answerAtLength(t, engine, 500)
			p.awaitEvents()
			err = fmt.Errorf("the newest file is %s old", time.Since(file.ModTime()))
		}
		return err
	})

	p.agent.kill()
	before := p.feedSeq()
	answerAtLength(t, engine, 500)
	if !saved {
		if err := os.RemoveAll(filepath.Join(state, "caches")); err != nil {
			t.Fatal(err)
		}
	}
	p.signalBus(syscall.SIGSTOP)
	resume := time.AfterFunc(3*time.Second, func() { p.signalBus(syscall.SIGCONT) })
	defer func() {
		resume.Stop()
		p.signalBus(syscall.SIGCONT) // a stopped one would not end
	}()

	p.agent = start(t, "agent", "--config", p.file, "--admin-address", "127.0.0.1:0", "--state-dir", state)
	eventually(t, "the events that were published without an agent arrive", func() error {
		if seq := p.feedSeq(); seq < before+100 {
			return fmt.Errorf("%d events, before %d", seq, before)
		}
		return nil
	})
	eventually(t, "caches are known exactly again", p.knowledge("exact", 1))
	if !saved {
		return
	}

	p.extproc.kill()
	p.startExtProc()
	eventually(t, "a new router knows the cache exactly", func() error {
		if _, err := get("http://" + p.extprocAdmin + "/readyz"); err != nil {
			return err
		}
		return p.knowledge("exact", 1)()
	})
}

// signalBus sends a signal to the bus.
func (p *parts) signalBus(signal syscall.Signal) { _ = p.bus.cmd.Process.Signal(signal) }

// survivor returns the address of the only surviving engine.
func (p *parts) survivor(state string) string {
	p.t.Helper()
	var record struct{ Port int }
	if err := json.Unmarshal([]byte(p.survivors(state)), &record); err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", record.Port)
}

// feedSeq returns the number of the last batch that the router has applied of its only rank.
func (p *parts) feedSeq() uint64 {
	p.t.Helper()
	text, err := get("http://" + p.extprocAdmin + "/debug/feed?format=json")
	if err != nil {
		p.t.Fatal(err)
	}
	var ranks []struct{ Seq uint64 }
	if err := json.Unmarshal([]byte(text), &ranks); err != nil || len(ranks) != 1 {
		p.t.Fatalf("%v: %s", err, text)
	}
	return ranks[0].Seq
}

// awaitEvents waits until the router has all events. On a busy machine the agent is behind the engine by more than the engine can replay.
func (p *parts) awaitEvents() {
	p.t.Helper()
	settles(p.t, "the last event", func() (uint64, error) { return p.feedSeq(), nil })
}

// answerAtLength has an engine write sixteen answers of so many tokens. They complete a block in turn, so that nearly each of its passes
// has events, and publishes a message.
func answerAtLength(t *testing.T, engine string, tokens int) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":%d}`, fmt.Sprint(time.Now(), strings.Repeat("x", i)), tokens)
			resp, err := http.Post("http://"+engine+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("the engine answers with status %d", resp.StatusCode)
			}
		})
	}
	all.Wait()
}
