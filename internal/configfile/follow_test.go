package configfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/testkit"
)

// TestFollow applies a change, and logs its keys, and those that wait for a restart. Content that is not valid or is refused changes nothing.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stator.yaml")
	write := func(text string) {
		err := os.WriteFile(path+".new", []byte(header+text), 0o600)
		if err == nil {
			err = os.Rename(path+".new", path) // or Follow may read a half
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("models: [{name: a, path: m}]\n")

	var log testkit.Log
	f, cfg, err := NewFollower(FollowerConfig{Path: path, Read: Read, Part: "routers", Log: log.Logger(), Metrics: prometheus.NewRegistry()})
	if err != nil || cfg.Models[0].Name != "a" || f.Degraded() != nil {
		t.Fatal(cfg, err, f.Degraded())
	}
	cfg.Models[0].Name = "changed by a flag" // which is no change of the file
	first := f.Status().Digest

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- f.Follow(ctx, func(cfg *config.Config) error {
			if cfg.Models[0].Name == "refused" {
				return errors.New("no such model")
			}
			return nil
		})
	}()
	awaitPending := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, "pending are "+strings.Join(want, ", "), func() bool { return slices.Equal(f.Status().Pending, want) })
	}

	write("models: [{name: a, path: m, router: {policy: session}}]\nprompts: {memoryBytes: 1048576}\nbus: {cluster: x}\nplanner: {interval: 9s}\n")
	awaitPending("prompts.memoryBytes", "bus.cluster")
	for _, want := range []string{"changed=models[a].router.policy", `of=routers keys=prompts.memoryBytes`, `of="the planner" keys=planner.interval`} {
		testkit.Eventually(t, want+" is logged", func() bool { return log.Contains(want) })
	}
	if err := f.Degraded(); err == nil || !strings.Contains(err.Error(), "a restart is needed for prompts.memoryBytes, bus.cluster") {
		t.Error(err)
	}

	write("nonsense")
	testkit.Eventually(t, "the error is shown", func() bool { return f.Status().Err != nil })
	write("models: [{name: refused, path: m}]\n")
	testkit.Eventually(t, "the refusal is shown", func() bool { return strings.Contains(f.Degraded().Error(), "no such model") })
	if f.Status().Digest == first || len(f.Status().Pending) != 2 {
		t.Errorf("%+v after content that is refused", f.Status())
	}

	keys := filepath.Join(filepath.Dir(path), "keys")
	write("gateway: {auth: {keysFile: keys}}\nmodels: [{name: a, path: m}]\n")
	testkit.Eventually(t, "keys are configured", func() bool { return log.Contains("gateway.auth.keysFile") })
	if err := os.WriteFile(keys, []byte("other keys"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the file of keys is read", func() bool { return log.Contains("files of keys read again") })

	write("models: [{name: a, path: m}]\n")
	testkit.Eventually(t, "nothing waits any more", func() bool { return f.Degraded() == nil && f.Status().Digest == first })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, _, err := NewFollower(FollowerConfig{Path: path + ".absent", Read: Read, Metrics: prometheus.NewRegistry()}); err == nil {
		t.Error("a missing file is followed")
	}
}
