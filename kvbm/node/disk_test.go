package node

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/disk"
	"github.com/stator-project/stator/kvbm/object"
	"github.com/stator-project/stator/test/testkit"
)

// withDisk has a node use a folder as its disk, of so many bytes, and a log.
func withDisk(dir string, bytes int64, log *testLog) func(*Config) {
	return func(c *Config) {
		c.DiskDir = dir
		c.DiskBytes = bytes
		c.Log = slog.New(slog.NewTextHandler(log, nil))
	}
}

// tier returns the status of a tier of a node.
func (r *running) tier(t *testing.T, name string) TierStatus {
	t.Helper()
	for _, s := range r.node.Status().Tiers {
		if s.Tier == name {
			return s
		}
	}
	t.Fatalf("there is no tier %s", name)
	return TierStatus{}
}

// TestLockedDisk: while another process has the folder of the disk, host memory and other nodes are used. The log has that once. The disk is used
// as soon as the folder is free.
func TestLockedDisk(t *testing.T) {
	dir := t.TempDir()
	other, err := disk.Open(disk.Config{Dir: dir, Bytes: 1 << 20, BlockBytes: layout.Bytes(), Space: layout.Space()})
	if err != nil {
		t.Fatal(err)
	}
	list := []string{testkit.Address(t), testkit.Address(t)}
	log := &testLog{}
	a := start(t, "a", list[0], list, nil)
	b := start(t, "b", list[1], list, withDisk(dir, 8<<20, log))
	keys := someKeys(20)
	engineA, engineB := a.engine(t), b.engine(t)
	put(t, engineA, keys[:10])
	put(t, engineB, keys[10:])
	found(t, engineB, keys, 20)
	if n := fetch(t, engineB, keys); n != 20 {
		t.Errorf("%d blocks came", n)
	}
	testkit.Eventually(t, "the log has the reason", func() bool { return log.count("does not work; the others do") == 1 })
	if s := b.tier(t, "disk"); s.Health != Failing || !strings.Contains(s.Reason, disk.ErrLocked.Error()) {
		t.Errorf("%+v", s)
	}
	if _, err := b.node.Flush(t.Context(), "disk"); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("flush of the disk: %v", err)
	}

	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the disk is used", func() bool { return b.tier(t, "disk").Health == Healthy })
	put(t, engineB, []block.Key{{1}})
	testkit.Eventually(t, "the block is copied to it", func() bool { return b.tier(t, "disk").Blocks == 1 })
	testkit.Eventually(t, "the log has the end", func() bool { return log.count("works again") == 1 })
	if n := log.count("does not work; the others do"); n != 1 {
		t.Errorf("the failure was logged %d times", n)
	}
}

// TestFullDisk: a disk without room for the tier's file leaves host memory in use.
func TestFullDisk(t *testing.T) {
	log := &testLog{}
	r := start(t, "a", "", nil, withDisk(filepath.Join(t.TempDir(), "kv"), 1<<50, log))
	c := r.engine(t)
	put(t, c, someKeys(10))
	if n := fetch(t, c, someKeys(10)); n != 10 {
		t.Errorf("%d blocks came", n)
	}
	if s := r.tier(t, "disk"); s.Health != Failing || s.Reason == "" {
		t.Errorf("%+v", s)
	}
}

// TestBadBucketIsLogged: a bucket that does not work is logged with the reason, once.
func TestBadBucketIsLogged(t *testing.T) {
	log := &testLog{}
	r := start(t, "a", "", nil, func(c *Config) {
		c.Object = object.S3Config{Endpoint: "http://" + testkit.Address(t), Bucket: "b", AccessKey: "key", SecretKey: "secret", PathStyle: true}
		c.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	put(t, r.engine(t), someKeys(10))
	testkit.Eventually(t, "the log has the reason", func() bool { return log.count("does not work; the others do") == 1 })
	if s := r.tier(t, "external"); s.Health != Failing || log.count(s.Reason) == 0 && !strings.Contains(s.Reason, `"`) {
		t.Errorf("%+v", s)
	}
}

// TestHealthIsLoggedOnceAnEpisode has the changes of a tier.
func TestHealthIsLoggedOnceAnEpisode(t *testing.T) {
	log := &testLog{}
	n := &Node{cfg: Config{Model: "m", Log: slog.New(slog.NewTextHandler(log, nil))}}
	before := Health("")
	for _, h := range []Health{Healthy, Degraded, Degraded, Failing, Failing, Degraded, Healthy, Healthy} {
		n.logHealth(&TierStatus{Tier: "disk", Health: h, Reason: "input/output error"}, before)
		before = h
	}
	if log.count("has errors") != 1 || log.count("does not work") != 1 || log.count("works again") != 1 || log.count("\n") != 3 {
		t.Errorf("the log:\n%s", log.text.String())
	}
}
