package scenario

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// promises sends chats one after the other, each for the second time or later, and demands that
// what their decisions promised to find in the worker's cache is what its engine reports as found.
// It returns how many blocks were promised altogether.
func (p *parts) promises(t *testing.T, what string, chats [][]message) (blocks int) {
	t.Helper()
	for i, messages := range chats {
		r := p.chat(messages, 1)
		d := p.decision(r.decision)
		blocks += d.Overlap
		// An engine computes the last token of a prompt that it holds whole, with its block.
		if found := r.usage.Details.CachedTokens; d.Overlap*16 > found+16 || d.Overlap*16 < found {
			t.Errorf("%s: chat %d to %s: %d blocks were promised, the engine found %d tokens", what, i, d.Worker, d.Overlap, found)
		}
		p.awaitIdle() // otherwise load would count, too
	}
	return blocks
}

// TestPromisesHoldAcrossRestarts: routers and engines are killed. From the first request after each is back, engines find what
// decisions promise. A router that starts learns the caches from snapshots of the agent, and not from predictions,
// because it has made none.
func TestPromisesHoldAcrossRestarts(t *testing.T) {
	t.Parallel()
	p := startParts(t, 2)
	eventually(t, "both workers take requests", func() error {
		ready := 0
		for _, r := range p.fleet() {
			if r.State == "ready" {
				ready++
			}
		}
		if ready < 2 {
			return errNotYet
		}
		return nil
	})
	var chats [][]message
	for i := range 8 {
		chats = append(chats, []message{{"user", fmt.Sprintf("Case %d. ", i) + strings.Repeat("What does a promise weigh when nobody keeps it? ", 100)}})
		p.chat(chats[i], 1)
		p.awaitIdle()
	}
	eventually(t, "caches are known exactly", p.knowledge("exact", 2))
	before := p.promises(t, "from the beginning", chats)
	if before == 0 {
		t.Fatal("nothing was promised: the test shows nothing")
	}

	p.extproc.kill()
	p.startExtProc()
	eventually(t, "the router is back", func() error {
		_, err := get("http://" + p.extprocAdmin + "/readyz")
		return err
	})
	eventually(t, "caches are known exactly by the new router", p.knowledge("exact", 2))
	p.awaitPicks()
	if n := p.metric("stator_feed_recoveries_total", `by="snapshot"`, `result="exact"`); n < 2 {
		t.Errorf("%g of 2 ranks were recovered by a snapshot", n)
	}
	if after := p.promises(t, "after the router's restart", chats); after != before {
		t.Errorf("a new router promises %d blocks, the old one %d", after, before)
	}

	holder := p.decision(p.chat(chats[0], 1).decision).Worker
	victim := rank{}
	for _, r := range p.fleet() {
		if r.Worker == holder {
			victim = r
		}
	}
	if err := syscall.Kill(childWith(t, p.agent.cmd.Process.Pid, victim.Address), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker is back", func() error {
		for _, r := range p.fleet() {
			if r.Worker == victim.Worker && r.State == "ready" && r.Address != victim.Address {
				return nil
			}
		}
		return errNotYet
	})
	eventually(t, "caches are known exactly again", p.knowledge("exact", 2))
	if after := p.promises(t, "after the engine's restart", chats); after >= before {
		t.Errorf("%d blocks are promised, %d before: nothing was forgotten", after, before)
	}
	again := p.promises(t, "after all", chats)
	if again != before {
		t.Errorf("in the end %d blocks are promised, %d in the beginning", again, before)
	}
	p.assertNothingBooked()
}
