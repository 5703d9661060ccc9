package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// profileSeconds is the duration of each profile: at a hundred samples a second and core it
// shows functions that take a per cent.
const profileSeconds = 15

// profile loads every set-up that has an ext_proc process once more and writes its CPU
// profile. These requests are not in the table: profiling costs too.
func (b *bench) profile(ctx context.Context, text *corpus, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write profiles: %w", err)
	}
	for i, chars := range b.sizes {
		for _, s := range b.setups {
			if s.extproc == 0 {
				continue
			}
			name := strings.NewReplacer(", ", "-", " ", "-").Replace(s.name)
			path := filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", name, chars))
			if err := b.profileOne(ctx, s, text, b.rounds+1+i, chars, path); err != nil {
				return fmt.Errorf("profile %s at %d characters: %w", s.name, chars, err)
			}
			_, _ = fmt.Fprintf(b.progress, "wrote %s\n", path)
		}
	}

	return nil
}

// profileOne sends requests for as long as the profile lasts. Warm ones continue the same
// known turns again and again, each time with another end, so that nothing else is in their
// profile.
func (b *bench) profileOne(ctx context.Context, s *setup, text *corpus, round, chars int, path string) error {
	c, err := dial(s.gateway, b.streams)
	if err != nil {
		return err
	}

	defer c.close()
	batch := b.batch(s, chars)
	send := func(turn int) error {
		return b.send(s, c, batch, func(dst []byte, i int) []byte {
			if !s.warm {
				return dialogue{seedOf(round, chars, false, turn*batch+i), chars}.appendBody(dst, text, 1)
			}
			return dialogue{seedOf(round, chars, true, i), chars}.appendBody(dst, text, turn)
		}, &tally{seen: counts{}})
	}

	if err := send(0); err != nil {
		return err
	}

	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := getPage(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", s.admin, profileSeconds))
		done <- result{data, err}
	}()

	for turn := 1; ; turn++ {
		select {
		case r := <-done:
			if r.err != nil {
				return r.err
			}
			return os.WriteFile(path, r.data, 0o644)
		default:
		}
		if err := send(turn); err != nil {
			return err // the profile's goroutine ends with its process
		}
	}
}
