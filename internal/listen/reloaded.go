package listen

import (
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// lookAgain bounds how often files are examined for changes.
const lookAgain = time.Second

// stamp identifies the content of a file, as far as the file system shows it. The stamp of a missing file is
// zero.
type stamp struct {
	changed time.Time
	size    int64
}

// reloaded is a value that is made of files, and made again when one of them has changed.
type reloaded[T any] struct {
	paths []string
	read  func() (T, error)
	log   *slog.Logger

	mu     sync.Mutex
	looked time.Time
	stamps []stamp
	value  T
}

// Follow returns a function that returns a value made of files. It makes the value again when a file has changed, and looks for changes
// once a second at most. Files that cannot be used leave the last value in force, and are logged.
func Follow[T any](log *slog.Logger, read func() (T, error), paths ...string) (current func() T, err error) {
	r, err := newReloaded(log, read, paths...)
	if err != nil {
		return nil, err
	}
	return func() T { return r.current(time.Now()) }, nil
}

// newReloaded reads the files for the first time.
func newReloaded[T any](log *slog.Logger, read func() (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{paths: paths, read: read, log: log, looked: time.Now()}
	// The stamps are older than the content. So a change in between is a change at the next look.
	r.stamps = r.stampsNow()

	value, err := read()
	r.value = value
	return r, err
}

// current returns the value at that time. Files that cannot be used leave the last value in force; each change to
// such files is logged once.
func (r *reloaded[T]) current(now time.Time) T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.looked) < lookAgain {
		return r.value
	}

	r.looked = now
	stamps := r.stampsNow()
	if slices.Equal(stamps, r.stamps) {
		return r.value
	}

	r.stamps = stamps
	value, err := r.read()
	if err != nil {
		r.log.Warn("changed files cannot be used, the last ones stay in force", "files", r.paths, "err", err)
		return r.value
	}
	r.log.Info("files read again", "files", r.paths)
	r.value = value
	return value
}

func (r *reloaded[T]) stampsNow() []stamp {
	stamps := make([]stamp, len(r.paths))
	for i, path := range r.paths {
		if info, err := os.Stat(path); err == nil {
			stamps[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return stamps
}
