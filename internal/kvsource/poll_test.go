package kvsource_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/testkit"
)

// polledEngine is a TensorRT-LLM engine: it answers with each event once.
type polledEngine struct {
	*httptest.Server
	mu     sync.Mutex
	answer []string
	status int
}

func newPolledEngine(t *testing.T) *polledEngine {
	d := &polledEngine{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if r.Method != http.MethodPost || r.URL.Path != "/kv_cache_events" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		if d.status != 0 {
			w.WriteHeader(d.status)
			return
		}
		if len(d.answer) == 0 {
			fmt.Fprint(w, "[]")
			return
		}
		fmt.Fprint(w, d.answer[0])
		d.answer = d.answer[1:]
	}))
	t.Cleanup(d.Close)
	return d
}

func (d *polledEngine) publish(answers ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = append(d.answer, answers...)
}

func (d *polledEngine) fail(status int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status = status
}

// events is an answer with the events from one number to another.
func events(from, to int) string {
	var all []string
	for id := from; id <= to; id++ {
		data := fmt.Sprintf(`{"type":"stored","parent_hash":null,"blocks":[{"block_hash":%d,"tokens":[1,2,3,%d]}]}`, id, id)
		if id == 0 {
			data = `{"type":"created","num_blocks_per_cache_level":[8]}`
		}
		all = append(all, fmt.Sprintf(`{"event_id":%d,"window_size":512,"data":%s}`, id, data))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func listenHTTP(t *testing.T, d *polledEngine, giveUp bool) *consumer {
	return listen(t, d.URL+"/kv_cache_events", "", func(c *kvsource.Config, l *consumer) {
		c.Dialect, c.Rank, c.Timeout = kvevent.TRTLLM, 2, 10*time.Second
		if giveUp {
			l.giveUp = time.Now()
		}
	})
}

// TestPolledEngine polls an engine that fails for a while and then restarts.
func TestPolledEngine(t *testing.T) {
	d := newPolledEngine(t)
	d.publish(events(0, 3), events(4, 4))
	l := listenHTTP(t, d, false)
	testkit.Eventually(t, "both answers are here", l.reached(2))
	d.fail(503)
	testkit.Eventually(t, "it is lost", func() bool { return !l.Stats().Connected })
	d.publish(events(5, 9))
	d.fail(0)
	testkit.Eventually(t, "the third is here", l.reached(3))
	// A new process numbers from 0 again.
	d.publish(events(0, 1))
	testkit.Eventually(t, "the restart is seen", func() bool { return l.Stats().Restarts == 1 })
	testkit.Eventually(t, "it is here", l.reached(1))
	l.read(func() {
		if fmt.Sprint(l.accepted) != "[0 1 2 0]" || l.stored != 10 || l.gaps != 0 || !l.ranks[2] {
			t.Errorf("accepted %v, stored %d, gaps %d, ranks %v", l.accepted, l.stored, l.gaps, l.ranks)
		}
	})
	if s := l.Stats(); s.Connects != 2 || s.Received != 4 || s.Unrecovered != 0 {
		t.Errorf("%v", s)
	}
}

// TestPolledEngineLosesEvents: lost events are gaps, at the beginning, where another client took some,
// and where an answer could not be decoded.
func TestPolledEngineLosesEvents(t *testing.T) {
	d := newPolledEngine(t)
	d.publish(events(7, 8), events(9, 9), events(20, 20), "not JSON", events(21, 21))
	l := listenHTTP(t, d, true)
	testkit.Eventually(t, "all are here", l.reached(7))
	l.read(func() {
		if fmt.Sprint(l.accepted) != "[1 2 4 6]" {
			t.Errorf("accepted %v", l.accepted)
		}
	})
	if s := l.Stats(); s.Malformed != 1 {
		t.Errorf("%v", s)
	}
}

// TestPollWaitsForConsumer: while the consumer misses an answer the engine is not polled, for
// Config.Timeout at most.
func TestPollWaitsForConsumer(t *testing.T) {
	d := newPolledEngine(t)
	d.publish(events(3, 3), events(4, 4))
	l := listenHTTP(t, d, false)
	testkit.Eventually(t, "apply has refused", func() (refused bool) {
		l.read(func() { refused = l.gaps > 2 })
		return refused
	})
	d.mu.Lock()
	left := len(d.answer)
	d.mu.Unlock()
	if left != 1 {
		t.Errorf("%d answers are left", left)
	}
	l.read(func() { l.giveUp = time.Now() })
	testkit.Eventually(t, "both are here", l.reached(3))
}

// TestDialectOf covers each engine, and both transports of TensorRT-LLM.
func TestDialectOf(t *testing.T) {
	for _, tt := range []struct {
		engine, endpoint string
		want             kvevent.Dialect
	}{
		{"vllm", "tcp://a:1", kvevent.VLLM}, {"sim", "tcp://a:1", kvevent.VLLM}, {"", "", kvevent.VLLM}, {"sglang", "tcp://a:1", kvevent.SGLang},
		{"trtllm", "tcp://a:1", kvevent.VLLM}, {"trtllm", "http://a:1/kv_cache_events", kvevent.TRTLLM}, {"dynamo", "tcp://a:1", kvevent.VLLM},
	} {
		if got := kvsource.DialectOf(tt.engine, tt.endpoint); got != tt.want {
			t.Errorf("%s at %s: %v, want %v", tt.engine, tt.endpoint, got, tt.want)
		}
	}
}
