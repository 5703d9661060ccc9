package configfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/metric"
)

// watchEvery is the interval at which the file is read. Polling works with every file system and every way of
// replacing a file.
const watchEvery = time.Second

// FollowerConfig is read by NewFollower and not changed later.
type FollowerConfig struct {
	Path string
	// Read reads the file: Read or ReadPartial.
	Read func(path string) (*config.Config, error)
	// Part is the name of this part in config.Change.Restart. A process of all parts has none.
	Part    string
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Follower applies the changes of a configuration file to one process, and knows which of them wait for its restart.
//
// All methods are safe for concurrent use.
type Follower struct {
	cfg FollowerConfig

	started *config.Config // as the file had it when the process began
	last    []byte         // the content that Follow has read last
	watched string         // the state of the files that are read with it

	mu     sync.Mutex
	status Status         // guarded by mu
	now    *config.Config // guarded by mu; the last one that was applied
}

// Status describes the configuration of a process.
type Status struct {
	Path string
	// Digest is of the file's content that is in force, as [Digest] makes it.
	Digest string
	// Applied is the time from which it is in force.
	Applied time.Time
	// Pending are the keys whose new values this process takes only at its next start.
	Pending []string
	// Err is the reason why the present content of the file is not in force; nil if it is.
	Err error
}

// Digest returns the first 16 hexadecimal digits of the SHA-256 of a file's content.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// NewFollower reads the file, and returns it and a follower for its changes.
func NewFollower(cfg FollowerConfig) (*Follower, *config.Config, error) {
	content, err := os.ReadFile(cfg.Path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	// Flags and discovery change the one that the process uses.
	used, err := cfg.Read(cfg.Path)
	if err != nil {
		return nil, nil, err
	}
	started, err := cfg.Read(cfg.Path)
	if err != nil {
		return nil, nil, err
	}

	f := &Follower{
		cfg: cfg, started: started, now: started, last: content, watched: stamps(started),
		status: Status{Path: cfg.Path, Digest: Digest(content), Applied: time.Now()},
	}

	part := metric.For(cfg.Metrics, "config")
	part.GaugeFunc("pending_restart_keys", "Keys of the configuration file whose new values wait for a restart of this process.",
		func() float64 { return float64(len(f.Status().Pending)) })
	part.GaugeFunc("last_reload_successful", "1 if the content of the configuration file is in force, and 0 if it was refused.",
		func() float64 {
			if f.Status().Err != nil {
				return 0
			}
			return 1
		})
	part.GaugeFunc("last_change_timestamp_seconds", "Time at which the configuration in force was applied.",
		func() float64 { return float64(f.Status().Applied.UnixMilli()) / 1e3 })
	return f, used, nil
}

// Status returns the state of the configuration.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Degraded returns an error while the file has settings that this process does not use: the content is refused, or keys wait for a restart.
// A nil follower, of a process without a file, has none.
func (f *Follower) Degraded() error {
	if f == nil {
		return nil
	}
	s := f.Status()
	var pending error
	if len(s.Pending) > 0 {
		pending = fmt.Errorf("%s: a restart is needed for %s", s.Path, strings.Join(s.Pending, ", "))
	}
	return errors.Join(s.Err, pending)
}

// Follow calls apply with every new valid content of the file until ctx ends. A change of a file of keys counts as one, because apply
// reads these files. Content that is not valid, or that apply refuses, is logged, and the last configuration stays in force. It may be
// called once.
func (f *Follower) Follow(ctx context.Context, apply func(*config.Config) error) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}

		content, err := os.ReadFile(f.cfg.Path)
		watched := stamps(f.now)
		if err != nil || bytes.Equal(content, f.last) && watched == f.watched {
			continue // a file that is being replaced may be missing for a moment
		}
		f.last, f.watched = content, watched
		kept, err := f.cfg.Read(f.cfg.Path)
		if err != nil {
			f.refused(err)
			continue
		}
		used, err := f.cfg.Read(f.cfg.Path)
		f.watched = stamps(kept) // before apply reads the files, so that a change in between is one at the next look
		if err == nil {
			err = apply(used)
		}
		if err != nil {
			f.refused(err)
			continue
		}
		f.applied(kept, Digest(content))
	}
}

// stamps returns the state of the files that are read with a configuration, as far as the file system shows it: the time and the size of
// each. A file that is missing for a moment, while it is replaced, has none, so that its return is a change too.
func stamps(cfg *config.Config) string {
	var b strings.Builder
	for _, path := range cfg.Gateway.Watched() {
		if info, err := os.Stat(path); err == nil {
			fmt.Fprint(&b, info.ModTime().UnixNano(), " ", info.Size())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// refused records content that is not in force.
func (f *Follower) refused(err error) {
	f.mu.Lock()
	f.status.Err = err
	f.mu.Unlock()
	f.cfg.Log.Error("configuration not changed; the last one stays in force", "err", err)
}

// applied records a configuration that is in force, and logs its keys: those in force, and those that wait for restarts.
func (f *Follower) applied(cfg *config.Config, digest string) {
	f.mu.Lock()
	changes := config.Changes(f.now, cfg)
	pending := []string{}
	for _, c := range config.Changes(f.started, cfg) {
		if c.ReadBy(f.cfg.Part) {
			pending = append(pending, c.Key)
		}
	}
	f.now = cfg
	f.status = Status{Path: f.cfg.Path, Digest: digest, Applied: time.Now(), Pending: pending}
	f.mu.Unlock()

	// The log has the same lines in each part, so that any of them shows which others must be restarted.
	var live []string
	restarts := map[string][]string{}
	for _, c := range changes {
		if c.Restart == "" {
			live = append(live, c.Key)
		} else {
			restarts[c.Restart] = append(restarts[c.Restart], c.Key)
		}
	}
	if len(changes) == 0 {
		f.cfg.Log.Info("files of keys read again")
	} else {
		f.cfg.Log.Info("configuration changed", "changed", strings.Join(live, ", "))
	}
	for parts, keys := range restarts {
		f.cfg.Log.Warn("changed keys of the configuration have no effect before a restart", "of", parts, "keys", strings.Join(keys, ", "))
	}
	if len(pending) > 0 && len(restarts) == 0 {
		f.cfg.Log.Warn("this process still needs a restart", "for", strings.Join(pending, ", "))
	}
}
