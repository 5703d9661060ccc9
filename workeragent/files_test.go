package workeragent

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
)

// TestEngineStartsAfterItsFiles: while the files of its model come, a worker is starting and has no process, and its status has the
// progress. It starts when they are there. A failure is one of the start, which is tried again.
func TestEngineStartsAfterItsFiles(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "model")
	var calls atomic.Int64
	come := make(chan struct{})
	files := func(ctx context.Context, model, dir string, progress func(done, total int64)) error {
		if model != "m" || dir != folder {
			t.Errorf("files of %q in %q", model, dir)
		}
		if calls.Add(1) == 1 {
			return errors.New("no peer has the model")
		}
		progress(30, 100)
		select {
		case <-come:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	launch, local := exec("a", "obey", "{port}"), exec("b", "obey", "{port}")
	launch.ModelPath, local.ModelPath = folder, "builtin:sim"
	s := run(t, Config{Files: files}, launch, local)
	s.await("b", fleet.Ready, 0)
	s.await("a", fleet.Starting, 0)
	testkit.Eventually(t, "the status has the progress", func() bool {
		for _, e := range s.agent.Status() {
			if e.Worker == "a" {
				return e.PID == 0 && strings.Contains(e.LastLine, "fetching the files of the model: 30 %")
			}
		}
		return false
	})
	close(come)
	s.await("a", fleet.Ready, 0)
	if n := calls.Load(); n != 2 {
		t.Errorf("files were asked for %d times", n)
	}
	if !s.log.Contains("no peer has the model") {
		t.Error("the log does not have the failure")
	}
}
