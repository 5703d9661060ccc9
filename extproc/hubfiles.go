package extproc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/prompt"
)

// The longest pause between two downloads of a model's files that fail, and the first one.
const (
	hubPause    = 5 * time.Second
	maxHubPause = 5 * time.Minute
)

// hubFiles are the files of a model on a hub. They are downloaded while requests are served, because a hub that is slow or away must
// not keep a router from serving. A router without them is degraded and not unready: if it were unready, Envoys would balance the
// requests without it, which is no better than by load.
//
//	state                              requests of the model
//	not in the cache, being downloaded by load
//	in the cache at the start          by the cached files; the hub is asked for newer ones once
//	downloaded                         by the files, until the end of the process
//	the download failed                as before it; the next attempt follows after a pause
type hubFiles struct {
	ref    hub.Ref
	folder string // with the files in use; empty if there are none
	asked  bool   // the hub has given the files: it is not asked again
	err    error  // why the last attempt has failed
}

// errDownloading is why the files of a model are not there before the first attempt has ended. Operators see it in /readyz.
var errDownloading = errors.New("being downloaded")

// prepareHubLocked returns the model at a path on a hub if the cache has its files. Otherwise it returns nil without an error, and
// followHub downloads them.
func (c *catalog) prepareHubLocked(path string) (*prompt.Model, error) {
	if c.onHub[path] != nil {
		return nil, nil
	}
	ref, err := hub.ParseRef(path)
	if err != nil {
		return nil, err
	}

	f := &hubFiles{ref: ref, err: errDownloading}
	c.onHub[path] = f
	folder := c.hub.Cached(ref)
	if folder == "" {
		return nil, nil
	}
	p, err := modelfile.Load(context.Background(), folder)
	f.err = err
	if err == nil {
		f.folder = folder
	}
	return p, nil // the hub may have better files than ones with an error
}

// followHub downloads the files of models on a hub until all are there, and again after a reload with others, until ctx ends.
func (c *catalog) followHub(ctx context.Context) {
	// One goroutine asks for all models. They are on one hub, so if it is slow for one, it is slow for the others too.
	pauses := backoff.Backoff{Min: hubPause, Max: maxHubPause}
	for {
		var again <-chan time.Time
		if !c.download(ctx) {
			again = time.After(pauses.Next())
		}

		select {
		case <-again:
		case <-c.reloaded: // by a person, who may have removed the cause
			pauses.Reset()
		case <-ctx.Done():
			return
		}
	}
}

// download asks the hub for each model whose files it has not given yet, one after the other. It reports whether none is left.
// The client of the hub bounds how long each takes.
func (c *catalog) download(ctx context.Context) bool {
	done := true
	// Fetch waits for the network, so the lock is not held.
	for path, ref := range c.missingOnHub() {
		folder, err := c.hub.Fetch(ctx, ref)
		if ctx.Err() != nil {
			return false
		}
		done = done && err == nil
		c.arrived(ctx, path, folder, err)
	}
	return done
}

// missingOnHub returns the models of the configuration for which the hub is still to be asked, by path.
func (c *catalog) missingOnHub() map[string]hub.Ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := map[string]hub.Ref{}
	for i := range c.settings.Models {
		path := c.settings.Models[i].Path
		if f := c.onHub[path]; f != nil && !f.asked {
			missing[path] = f.ref
		}
	}
	return missing
}

// arrived replaces the models of a path by those of the files that were downloaded. err is the error of the download. Files that cannot
// be read are not downloaded again: the ones before stay in use.
func (c *catalog) arrived(ctx context.Context, path, folder string, err error) {
	c.mu.Lock()
	// The entry is there: entries are never removed, because a reload may bring a path back, whose files are loaded already.
	f := c.onHub[path]
	f.asked = err == nil
	inUse := f.folder
	c.mu.Unlock()

	// Reading takes up to seconds, in which reloads need not wait. A reload meanwhile finds the path without files, and the models are
	// replaced again below.
	var p *prompt.Model
	if err == nil && folder != inUse {
		p, err = modelfile.Load(ctx, folder)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	f.err = err
	if err != nil {
		c.log.Error("the files of a model are not there; without any its requests go by load", "model", path, "in_use", inUse, "err", err)
		return
	}
	if p == nil {
		return // the cache had them
	}
	// The block hashes of prompts may differ from now on. Those of the engines decide: an engine that has loaded the same files agrees.
	f.folder = folder
	c.prepared[path] = p.WithMemory(c.memory)
	if err := c.setLocked(c.settings, c.factsLocked(c.settings)); err != nil {
		c.log.Error("models not replaced; the downloaded files are not used", "model", path, "err", err)
		return
	}
	c.log.Info("files of the model are there; its prompts are read", "model", path, "folder", folder)
}

// showHubFilesLocked publishes which models of the configuration have no files. It is called when the models are replaced, which is the
// only time at which that changes. Models with other paths have no sample.
func (c *catalog) showHubFilesLocked(settings *config.Config) {
	// Models that a reload has removed must not stay in the metric.
	c.withoutFiles.Reset()
	for i := range settings.Models {
		m := &settings.Models[i]
		if f := c.onHub[m.Path]; f != nil {
			missing := 0.0
			if f.folder == "" {
				missing = 1
			}
			c.withoutFiles.WithLabelValues(m.Name).Set(missing)
		}
	}
}

// hubErr returns why models do not have the files that the hub has; nil if all have them. It is for operators: the error has a line for
// each model, with the requests that it concerns and the error of the last attempt, which names the remedy.
func (c *catalog) hubErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for i := range c.settings.Models {
		m := &c.settings.Models[i]
		f := c.onHub[m.Path]
		switch {
		case f == nil || f.err == nil:
		case f.folder == "":
			errs = append(errs, fmt.Errorf("requests for model %s go by load, because %s is not there: %w", m.Name, m.Path, f.err))
		default:
			errs = append(errs, fmt.Errorf("model %s has older files than %s: %w", m.Name, m.Path, f.err))
		}
	}
	return errors.Join(errs...)
}
