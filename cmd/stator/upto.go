package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/modelfile"
)

// maxOwnEngines bounds the engines of --to.
const maxOwnEngines = 64

// readTo returns the addresses of --to, each a host and a port.
func readTo(text string) (addresses []string, err error) {
	for one := range strings.SplitSeq(text, ",") {
		full := one
		if !strings.Contains(one, "://") {
			full = "http://" + one
		}
		at, err := url.Parse(full)
		switch {
		case err != nil || at.Hostname() == "" || at.User != nil || at.RawQuery != "" || !isBase(at.Path):
			return nil, fmt.Errorf("--to names %q: write http://HOST:PORT for each engine, with commas between them", one)
		case at.Scheme != "http":
			return nil, fmt.Errorf("--to names %q, and its engines are reached by http: for TLS write a file with engineTLS", one)
		}

		address := net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), "80"))
		if slices.Contains(addresses, address) {
			return nil, fmt.Errorf("--to names %s twice", address)
		}
		addresses = append(addresses, address)
	}
	if len(addresses) > maxOwnEngines {
		return nil, fmt.Errorf("--to names %d engines: use a configuration file for more than %d", len(addresses), maxOwnEngines)
	}
	return addresses, nil
}

// isBase reports whether a path begins the paths of an engine, as the path in OPENAI_BASE_URL does.
func isBase(path string) bool {
	return slices.Contains([]string{"", "/v1"}, strings.TrimRight(path, "/"))
}

// ownEngines are the engines of --to. They run already, and are asked for the settings of a configuration file.
//
//	an engine                          effect
//	has not answered at the start      it is asked again, and becomes a worker with its answer
//	is not ready any more              it is asked again, because it may come back as another one
//	answers as another one             its worker is replaced
type ownEngines struct {
	flags   *upFlags
	client  *http.Client
	console *console
	log     *slog.Logger
	base    *config.Config // without models

	engines []ownEngine
	files   map[string]modelfile.Found // by what engines report
	told    map[string]bool            // models whose files were described
	logged  string                     // the last error about workers, which is not logged twice
}

// ownEngine is one engine. Its worker has no address until the engine has answered.
type ownEngine struct {
	address string
	worker  config.Found
	events  string // a text about its KV events, for the console
	err     error  // why it has not answered
	away    bool   // its worker was not ready since it answered
}

// askOwn bounds each question to an engine of --to, and askOwnEvery is the pause between them.
const (
	askOwn      = 2 * time.Second
	askOwnEvery = 500 * time.Millisecond
)

// othersWithin is the time for which the start waits for further engines after the first answer.
const othersWithin = 2 * time.Second

func newOwnEngines(o *upFlags, base *config.Config, t *console, log *slog.Logger) *ownEngines {
	e := &ownEngines{
		flags: o, base: base, console: t, log: log, files: map[string]modelfile.Found{}, told: map[string]bool{},
		client: &http.Client{Timeout: askOwn},
	}
	for i, address := range o.engines {
		e.engines = append(e.engines, ownEngine{address: address, worker: config.Found{Name: fmt.Sprintf("engine-%d", i)}})
	}
	return e
}

// await returns the configuration of the engines as soon as all have answered, or some and the others do not for othersWithin.
func (e *ownEngines) await(ctx context.Context) (*config.Config, error) {
	first := time.Time{}
	complained := time.Now()
	for {
		e.ask(ctx)
		missing := slices.IndexFunc(e.engines, func(o ownEngine) bool { return o.worker.Address == "" })
		known := slices.ContainsFunc(e.engines, func(o ownEngine) bool { return o.worker.Address != "" })
		if known && first.IsZero() {
			first = time.Now()
		}
		if missing < 0 || known && time.Since(first) >= othersWithin {
			break
		}

		if o := &e.engines[missing]; time.Since(complained) >= othersWithin {
			complained = time.Now().Add(8 * time.Second)
			e.console.waiting("engines", fmt.Errorf("http://%s: %w", o.address, o.err))
		}
		if err := backoff.Sleep(ctx, askOwnEvery); err != nil {
			return nil, err
		}
	}

	for i := range e.engines {
		if o := &e.engines[i]; o.worker.Address == "" {
			e.console.printf("  %s http://%s does not answer yet, and joins when it does: %v\n", o.worker.Name, o.address, o.err)
		}
	}
	return e.composed(ctx)
}

// ask asks the engines that have not answered, or that were away since, all at once. It reports whether one has become another.
func (e *ownEngines) ask(ctx context.Context) (changed bool) {
	before := make([]config.Found, len(e.engines))
	var all sync.WaitGroup
	for i := range e.engines {
		o := &e.engines[i]
		before[i] = o.worker
		if o.worker.Address == "" || o.away {
			all.Go(func() { e.askOne(ctx, o) })
		}
	}
	all.Wait()

	for i := range e.engines {
		o := &e.engines[i]
		if reflect.DeepEqual(o.worker, before[i]) {
			continue
		}
		changed = true
		w := &o.worker
		size := ""
		if w.BlockSize > 0 {
			size = fmt.Sprintf(", blocks of %d tokens", w.BlockSize)
		}
		e.console.printf("  %s http://%s: %s serves %s, ranks %d%s, %s\n", w.Name, o.address, w.Engine, w.Model, w.Ranks, size, o.events)
	}
	return changed
}

// askOne asks an engine for its description.
func (e *ownEngines) askOne(ctx context.Context, o *ownEngine) {
	id, err := engineprobe.Identify(ctx, e.client, o.address)
	o.err = err
	if err != nil {
		return
	}
	before := &o.worker
	if id.Kind == engines.Exec.Name && before.Model == id.Name {
		// An engine that was away may have no metrics yet. It is the same one.
		id.Kind, id.Ranks = before.Engine, before.Ranks
	}

	o.away = false
	o.worker = config.Found{
		Name: before.Name, Address: o.address, Engine: id.Kind, Ranks: id.Ranks, BlockSize: cmp.Or(id.BlockSize, before.BlockSize),
		Model: id.Name, Root: id.Root, Aliases: id.Aliases, Path: before.Path, // see findFiles
	}
	o.worker.NoEvents, o.events = e.askEvents(ctx, o)
}

// askEvents returns whether no KV events of an engine can be found, and a text about them.
func (e *ownEngines) askEvents(ctx context.Context, o *ownEngine) (none bool, text string) {
	kind := engines.Of(o.worker.Engine)
	predicted := "no KV events: its cache is predicted from the requests that it gets"
	if kind.Dialect != engines.VLLMEvents && kind.Dialect != engines.SGLangEvents {
		return true, predicted
	}

	found, err := kvsource.Discover(ctx, e.client, "http://"+o.address)
	switch {
	case err == nil && len(found) > 0:
		return false, "KV events"
	case errors.Is(err, kvsource.ErrNoDiscovery) && e.isAlone(o) && e.listens(ctx, o):
		return false, "KV events at port 5557"
	}
	return true, predicted + "; " + kind.Remedies.Events
}

// isAlone reports whether no other engine has the host of this one. Of two, only one could have the default ports of events.
func (e *ownEngines) isAlone(o *ownEngine) bool {
	host, _, _ := net.SplitHostPort(o.address)
	n := 0
	for i := range e.engines {
		if other, _, _ := net.SplitHostPort(e.engines[i].address); other == host {
			n++
		}
	}
	return n == 1
}

// listens reports whether the default port of events of an engine is open.
func (e *ownEngines) listens(ctx context.Context, o *ownEngine) bool {
	host, _, _ := net.SplitHostPort(o.address)
	d := net.Dialer{Timeout: askOwn}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, "5557"))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// composed returns the configuration with the engines that have answered.
func (e *ownEngines) composed(ctx context.Context) (*config.Config, error) {
	var found []config.Found
	for i := range e.engines {
		o := &e.engines[i]
		if o.worker.Address == "" {
			continue
		}
		if err := e.findFiles(ctx, &o.worker); err != nil {
			return nil, err
		}
		found = append(found, o.worker)
	}

	cfg, err := e.base.With(found)
	for i := range cfg.Found {
		cfg.Found[i].Reported = false // this process alone asks for their health
	}
	for i := range cfg.Models {
		cfg.Models[i].Router.Policy = e.flags.policy
	}
	if text := fmt.Sprint(err); err != nil && text != e.logged {
		e.logged = text
		e.log.Warn("workers left out", "err", err)
	}
	return cfg, errors.Join(cfg.Validate(), e.checkModelDir(cfg))
}

// findFiles sets the path of a worker's model, and says once for each model where its files are.
func (e *ownEngines) findFiles(ctx context.Context, w *config.Found) error {
	if e.flags.set["model-dir"] {
		folder, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("--model-dir: %w", err)
		}
		w.Path = modelfile.Resolve(e.flags.modelDir, folder)
		return nil
	}

	found, asked := e.files[w.Root]
	if !asked {
		found = modelfile.Find(ctx, w.Root)
		e.files[w.Root] = found
	}
	w.Path = found.Path
	switch {
	case e.told[w.Model]:
	case found.Path == "":
		e.console.printf("  model %s has no tokenizer, and its requests go by load: %s. Name its files with --model-dir\n",
			w.Model, found.Why)
	default:
		e.console.printf("  model %s: its tokenizer and template %s\n", w.Model, found.Why)
	}
	e.told[w.Model] = true
	return nil
}

// checkModelDir refuses one folder for several models.
func (e *ownEngines) checkModelDir(cfg *config.Config) error {
	if !e.flags.set["model-dir"] || len(cfg.Models) < 2 {
		return nil
	}
	return fmt.Errorf("--model-dir is for engines of one model, and they serve %s and %s: leave it out, or write a configuration file",
		cfg.Models[0].Name, cfg.Models[1].Name)
}

// follow asks the engines that are not ready, until ctx ends, and applies the changes.
func (e *ownEngines) follow(ctx context.Context, f *fleet.Fleet, apply func(*config.Config) error) error {
	tick := time.NewTicker(4 * askOwnEvery)
	defer tick.Stop()
	for {
		changed := f.Changed()
		for i := range e.engines {
			w := f.Snapshot().Worker(e.engines[i].worker.Name)
			e.engines[i].away = e.engines[i].away || w == nil || w.State != fleet.Ready
		}

		select {
		case <-ctx.Done():
			return nil
		case <-changed: // an engine may be away for less than a tick
			continue
		case <-tick.C:
		}
		if !e.ask(ctx) {
			continue
		}
		cfg, err := e.composed(ctx)
		if err == nil {
			err = apply(cfg)
		}
		if err != nil {
			e.log.Error("engines of --to not changed", "err", err)
		}
	}
}
