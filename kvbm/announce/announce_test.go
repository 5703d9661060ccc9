package announce

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/kvbm/peers"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// store is a store that keeps the nodes found for it.
type store struct {
	mu    sync.Mutex
	found []peers.Found
	calls int
}

func (s *store) Found(others []peers.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = others
	s.calls++
}

// waitFor waits until the nodes are as wanted, and returns how often they were set.
func (s *store) waitFor(t *testing.T, want string) (calls int) {
	t.Helper()
	testkit.Eventually(t, "the other nodes are "+want, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		calls = s.calls
		return fmt.Sprint(s.found) == want
	})
	return calls
}

// agent is one agent with a store of each of two models.
type agent struct {
	*Announcer
	m, o store
	bus  *bus.Bus
	stop func()
}

// start runs an agent until stop or the end of the test.
func start(t *testing.T, server *bus.Embedded, node, cluster string) *agent {
	t.Helper()
	a := &agent{bus: testkit.JoinBus(t, bus.Config{Embedded: server, Cluster: cluster})}
	a.Announcer = New(a.bus, node)
	a.Follow("m", &a.m)
	a.Follow("o", &a.o)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	a.stop = sync.OnceFunc(func() {
		cancel()
		run.Wait()
	})
	t.Cleanup(a.stop)
	return a
}

// TestNodesFindEachOther: the stores of a model get the other nodes of the same model and cluster, and lose them when they end, die or do
// not serve the model any more.
func TestNodesFindEachOther(t *testing.T) {
	server := testkit.Server(t)
	a, b, c := start(t, server, "a", ""), start(t, server, "b", ""), start(t, server, "c", "")
	elsewhere := start(t, server, "d", "other")
	elsewhere.Serve("m", "10.0.0.4:1")
	a.Serve("m", "10.0.0.1:1")
	b.Serve("m", "10.0.0.2:1")
	b.Serve("o", "10.0.0.2:2")
	c.Serve("m", "10.0.0.3:1")
	a.m.waitFor(t, "[{b 10.0.0.2:1} {c 10.0.0.3:1}]")
	a.o.waitFor(t, "[{b 10.0.0.2:2}]")
	b.m.waitFor(t, "[{a 10.0.0.1:1} {c 10.0.0.3:1}]")
	b.o.waitFor(t, "[]")

	calls := a.m.waitFor(t, "[{b 10.0.0.2:1} {c 10.0.0.3:1}]")
	time.Sleep(testkit.LeaseTTL)
	if again := a.m.waitFor(t, "[{b 10.0.0.2:1} {c 10.0.0.3:1}]"); again != calls {
		t.Errorf("messages that change nothing set the nodes %d times", again-calls)
	}
	b.Serve("m", "10.0.0.9:1")
	a.m.waitFor(t, "[{b 10.0.0.9:1} {c 10.0.0.3:1}]")
	b.Serve("m", "")
	a.m.waitFor(t, "[{c 10.0.0.3:1}]")
	a.o.waitFor(t, "[{b 10.0.0.2:2}]")

	b.stop()
	a.o.waitFor(t, "[]")
	c.bus.Close() // it cannot withdraw anything
	a.m.waitFor(t, "[]")
	c = start(t, server, "c", "")
	c.Serve("m", "10.0.0.3:2")
	a.m.waitFor(t, "[{c 10.0.0.3:2}]")
	c.m.waitFor(t, "[{a 10.0.0.1:1}]")
}
