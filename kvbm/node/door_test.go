package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stator-project/stator/test/testkit"
)

// TestSocketCannotBeOpened: a store whose socket cannot be opened does not end. It logs that once, and serves engines when it can.
func TestSocketCannotBeOpened(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	log := &testLog{}
	r := start(t, "a", "", nil, func(c *Config) {
		c.Socket = filepath.Join(dir, "kv.sock")
		c.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	r.socket = r.node.cfg.Socket
	testkit.Eventually(t, "the failure is logged", func() bool { return log.count("tries again") == 1 })
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, r.engine(t), someKeys(1))
	if n := log.count("tries again"); n != 1 {
		t.Errorf("the failure was logged %d times", n)
	}
}

// testLog is a log whose lines are counted.
type testLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// count returns how often a text is in the log.
func (l *testLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}
