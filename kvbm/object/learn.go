package object

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

// pageNames is the number of names that a list request asks for.
const pageNames = 1000

// readers is the number of indexes that are read at once.
const readers = 4

// maxBad bounds the names of unusable indexes that are remembered, so that they are not read again at every turn.
const maxBad = 1024

// learner reads the indexes that other processes publish. One goroutine uses it.
type learner struct {
	newest time.Time // in the names seen
	bad    map[string]struct{}
}

// learnAlways learns at intervals until ctx ends. The first turns are soon, because the tier becomes healthy soon.
func (t *Tier) learnAlways(ctx context.Context) {
	l := learner{bad: map[string]struct{}{}}
	pauses := backoff.Backoff{Min: min(100*time.Millisecond, t.cfg.LearnEvery), Max: t.cfg.LearnEvery}
	for {
		pause := t.cfg.LearnEvery
		if err := t.learn(ctx, &l); err != nil {
			pause = pauses.Next()
		} else {
			pauses.Reset()
		}
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// learn lists the index objects that may be new, and reads the new ones.
func (t *Tier) learn(ctx context.Context, l *learner) error {
	prefix := t.base + "i/"
	after := ""
	if !l.newest.IsZero() {
		// The clock of another node may be ahead.
		newest := l.newest
		if now := time.Now(); now.Before(newest) {
			newest = now
		}
		after = prefix + nameTime(newest.Add(-t.cfg.Overlap))
	}

	fresh, newest, err := t.listFresh(ctx, l, prefix, after)
	if err != nil {
		return err
	}
	if err := t.readIndexes(ctx, l, fresh); err != nil {
		return err
	}
	l.newest = newest
	return nil
}

// listFresh returns the index objects that this process has not read. Of many it returns the newest that the memory has room for.
func (t *Tier) listFresh(ctx context.Context, l *learner, prefix, after string) (fresh []Object, newest time.Time, err error) {
	newest = l.newest
	room := t.cfg.MaxBlocks
	for more := true; more; {
		var page []Object
		page, more, err = t.list(ctx, prefix, after)
		if err != nil || len(page) == 0 {
			return fresh, newest, err
		}
		after = page[len(page)-1].Name

		for _, o := range page {
			name, ok := parseName(strings.TrimPrefix(o.Name, prefix))
			if !ok || entriesOf(o.Size) == 0 {
				l.spoil(t, o.Name)
				continue
			}
			if name.made.After(newest) {
				newest = name.made
			}
			if _, bad := l.bad[o.Name]; !bad && t.catalog.wants(name.text) {
				fresh = append(fresh, o)
				room -= entriesOf(o.Size)
			}
		}
		for ; room < 0; fresh = fresh[1:] {
			n := entriesOf(fresh[0].Size)
			room += n
			t.catalog.forget(strings.TrimPrefix(fresh[0].Name, prefix), n)
		}
	}
	return fresh, newest, nil
}

// spoil counts an unusable index once.
func (l *learner) spoil(t *Tier, name string) {
	if _, known := l.bad[name]; known {
		return
	}
	if len(l.bad) >= maxBad {
		clear(l.bad)
	}
	l.bad[name] = struct{}{}
	t.counters.badIndexes.Add(1)
}

// readIndexes reads indexes, some at once, and adds them to the catalog. It stops at the first error of the store.
func (t *Tier) readIndexes(ctx context.Context, l *learner, fresh []Object) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work := make(chan Object)
	var mu sync.Mutex
	var failed error
	var workers sync.WaitGroup
	for range min(readers, len(fresh)) {
		workers.Go(func() {
			for o := range work {
				err := t.readIndex(ctx, o)
				mu.Lock()
				switch {
				case errors.Is(err, errIndex):
					l.spoil(t, o.Name)
				case err != nil && failed == nil:
					failed = err
					cancel()
				}
				mu.Unlock()
			}
		})
	}

	for _, o := range fresh {
		if ctx.Err() != nil {
			break
		}
		work <- o
	}
	close(work)
	workers.Wait()
	return failed
}

// readIndex reads one index. One that has been deleted since it was listed is no error.
func (t *Tier) readIndex(ctx context.Context, o Object) error {
	data := make([]byte, o.Size)
	err := t.getRange(ctx, o.Name, 0, [][]byte{data}, nil)
	if errors.Is(err, ErrMissing) {
		return nil
	}
	if err != nil {
		return err
	}

	name := strings.TrimPrefix(o.Name, t.base+"i/")
	entries, err := decodeIndex(t.macs.pack(name), data, t.cfg.Space, t.cfg.BlockBytes)
	if err != nil {
		return err
	}
	t.counters.indexes.Add(1)
	t.catalog.addPack(&pack{name: name, entries: entries})
	return nil
}
