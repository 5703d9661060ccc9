package extproc

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/hub"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
)

// ProfiledSpeeds reads the configured profiles and returns the speeds of the models that have a measured profile, by model.
func ProfiledSpeeds(settings *config.Config) (map[string]perfmodel.Speed, error) {
	speeds := map[string]perfmodel.Speed{}
	for i := range settings.Models {
		m := &settings.Models[i]
		if m.Profile == "" {
			continue
		}
		p, err := perfmodel.LoadProfile(os.DirFS(m.Profile))
		if err != nil {
			return nil, fmt.Errorf("models[%d].profile %s: %w", i, m.Profile, err)
		}
		speeds[m.Name] = p.Speed()
	}
	return speeds, nil
}

// catalog has the models that requests may name. They are made from the configuration and from the facts that engines report.
type catalog struct {
	*state
	// contested counts adapters that engines of two models list.
	contestedCount prometheus.Gauge
	// oddCount counts workers whose engines have another block size than their model.
	oddCount prometheus.Gauge
	// withoutFiles is 1 for a model on a hub without its files, by model.
	withoutFiles *prometheus.GaugeVec
	hub          *hub.Client
	// reloaded wakes followHub. It has one place.
	reloaded chan struct{}

	// Models are replaced as a whole, so that requests never see one without its adapters or its aliases.
	// mu is held while the models are replaced: by a new configuration, and after a change of the engines' facts.
	mu sync.Mutex
	// prepared holds the loaded models by path: a model's files are read once.
	prepared map[string]*prompt.Model // guarded by mu
	onHub    map[string]*hubFiles     // guarded by mu; by path, and never removed
	settings *config.Config           // guarded by mu; the settings of which the models were made
	engines  engineFacts              // guarded by mu; the facts of engines that the models have
	// blockSizes holds the block sizes by model, without models whose sizes are unknown. The map is never changed once stored.
	blockSizes atomic.Pointer[map[string]config.BlockSizes]
}

func newCatalog(s *state, reg prometheus.Registerer) *catalog {
	return &catalog{
		state: s, prepared: map[string]*prompt.Model{}, onHub: map[string]*hubFiles{}, reloaded: make(chan struct{}, 1),
		hub: hub.New(hub.FromEnvironment(s.log)),
		contestedCount: metric.For(reg, "extproc").Gauge("contested_adapters",
			"LoRA adapters that engines of two models list. Their requests go to the model that had the adapter first."),
		oddCount: metric.For(reg, "extproc").Gauge("other_block_size_workers",
			"Workers whose engines have another block size than is configured, or one that does not go with the model's other engines."),
		withoutFiles: metric.For(reg, "extproc").Gauges("model_without_files",
			"1 for a model on a hub whose files are not there: its prompts are not read, and its requests go by load. 0 with them.",
			"model"),
	}
}

// setModels replaces the models of the router, under their names, aliases and adapters. After an error the old
// models stay in use.
func (c *catalog) setModels(settings *config.Config) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	before := c.settings
	if err := c.setLocked(settings, c.factsLocked(settings)); err != nil {
		return err
	}
	if before != nil && slices.EqualFunc(before.Models, settings.Models, func(a, b config.Model) bool { return a.Path == b.Path }) {
		// Workers come and go, ten times a second during a rollout, which is no reason to ask a hub again before its pause is over.
		return nil
	}
	select {
	case c.reloaded <- struct{}{}:
	default:
	}
	return nil
}

// setLocked is set with the facts that the engines report. The caller holds mu.
func (c *catalog) setLocked(settings *config.Config, engines engineFacts) error {
	models := map[string]*serving.Config{}
	for i := range settings.Models {
		m := &settings.Models[i]
		preparer, length, err := c.preparerLocked(m, settings.Found, cmp.Or(m.ContextLength, engines.lengths[m.Name]))
		if err != nil {
			return fmt.Errorf("models[%d].path: %w", i, err)
		}
		cost, err := m.Router.CostFunction()
		if err != nil {
			return fmt.Errorf("models[%d].router: %w", i, err)
		}

		sizes := engines.blockSizes[m.Name]
		base := serving.Config{
			Prompt: preparer, Pool: m.Name, BlockSize: cmp.Or(sizes.Model, serving.DefaultBlockSize), CoarseSizes: sizes.Coarse(),
			ContextLength: length,
			Policy:        m.Router.Policy, Temperature: m.Router.Temperature, Cost: cost,
			Roles: decodeRole(&m.Router, cost), Prefill: serving.Prefill(m.Router.Prefill),
			Busy: m.Router.Busy.Route(), Queue: queueConfig(m), MaxWait: m.Router.Queue.MaxWait.Std(), Hold: m.Holds().Std(),
			Programs: m.Router.Queue.Programs, Store: m.KV.HostBytes > 0,
		}
		for _, name := range m.Names() {
			models[name] = &base
		}
		for _, a := range m.Adapters {
			adapter := adapterOf(&base, a.EngineName)
			adapter.Loadable = a.Path != ""
			models[a.Name] = adapter
		}
	}
	for name, model := range engines.adapters {
		adapter := adapterOf(models[model], name)
		adapter.Found = true
		models[name] = adapter
	}

	if err := c.routes.SetModels(models); err != nil {
		return err
	}
	// After SetModels: a failed reload must not change them.
	if old := c.blockSizes.Swap(&engines.blockSizes); old != nil {
		c.forgetResized(*old, engines.blockSizes)
	}
	c.settings = settings
	c.setFactsLocked(engines)
	c.showHubFilesLocked(settings)
	return nil
}

// adapterOf returns the model of an adapter, with its name in the engines' events. It shares everything with its base model
// but the seed of its block hashes: engines keep the blocks of adapters apart, because their content depends on the
// adapter's weights.
func adapterOf(base *serving.Config, engineName string) *serving.Config {
	adapter := *base
	adapter.Adapter = engineName
	adapter.Parent = base.Pool
	return &adapter
}

// forgetResized empties the ranks whose caches are searched by blocks of another size now: their blocks can match no prompt any
// more, and the engines' blocks that could were skipped before. The ranks are not exact then, so that cachesync
// recovers them, and that sources of listed workers replay them from the start. Until the model's sizes were known, blocks of every size
// were indexed.
func (c *catalog) forgetResized(old, now map[string]config.BlockSizes) {
	for _, m := range c.fleet.Snapshot().Ranks {
		before, after := old[m.Worker.Model].Of(m.Worker), now[m.Worker.Model].Of(m.Worker)
		// A rank without events would wait for their replay.
		if before != 0 && after != before && c.feed.State(m) != feed.None {
			c.log.Info("block size changed; the rank's cache state is rebuilt",
				"worker", m.Worker.Name, "rank", m.Number, "from", before, "to", after)
			c.feed.Forget(m.Worker.Name, m.Number)
		}
	}
}

// rebuildSkipped empties the ranks whose blocks were skipped for a size by which their caches are searched by now: an agent's lease may
// come after the first events.
//
// A rank whose events have another size than its lease says stays as it is, so that it is not emptied again and again.
func (c *catalog) rebuildSkipped() {
	for _, m := range c.fleet.Snapshot().Ranks {
		if size := c.feed.Skipped(m); size > 0 && size == c.blockSize(m.Worker) {
			c.feed.Forget(m.Worker.Name, m.Number)
		}
	}
}

// rulesOf returns the rules about requests of a model's engines, listed and found. They are vLLM's only if all engines have them: else
// the router would refuse requests that another engine serves.
func rulesOf(m *config.Model, found []fleet.Worker) prompt.Rules {
	for i := range found {
		if rules := prompt.RulesOf(found[i].Engine); found[i].Model == m.Name && rules != prompt.VLLM {
			return rules
		}
	}
	for i := range m.Workers {
		if rules := prompt.RulesOf(m.Workers[i].Engine); rules != prompt.VLLM {
			return rules
		}
	}
	for i := range m.Launch {
		if rules := prompt.RulesOf(m.Launch[i].Engine); rules != prompt.VLLM {
			return rules
		}
	}
	return prompt.VLLM
}

// preparerLocked returns the preparer of a model's prompts, and its context length in tokens: the given one, or else the length in its
// files. A model without a path has no preparer, nor has one on a hub before its files are there.
func (c *catalog) preparerLocked(m *config.Model, found []fleet.Worker, given int) (serving.Preparer, int, error) {
	if m.Path == "" {
		return nil, given, nil
	}
	p, err := c.prepareLocked(m.Path)
	if err != nil {
		return nil, 0, err
	}
	if p == nil {
		return nil, given, nil
	}
	p = p.WithContextLength(given).WithRules(rulesOf(m, found))
	return p, p.ContextLength(), nil
}

// prepareLocked returns the model at a path, which it loads at the first call. A tokenizer takes up to seconds to
// load and hundreds of megabytes, so a reload must not load it again, nor two names of one model. A model on a hub is nil until its
// files are there.
func (c *catalog) prepareLocked(path string) (*prompt.Model, error) {
	if p := c.prepared[path]; p != nil {
		return p, nil
	}
	// Other paths are on this machine, and their errors end the start or the reload.
	load := c.prepareHubLocked
	if !hub.IsRef(path) {
		load = func(path string) (*prompt.Model, error) { return modelfile.Load(context.Background(), path) }
	}
	p, err := load(path)
	if p == nil {
		return nil, err
	}
	c.prepared[path] = p.WithMemory(c.memory)
	return c.prepared[path], nil
}

// adapterPath returns the facts for a load from the present configuration, so that a reload counts at once. The adapters are few, and it is
// called for requests that are refused alone.
//
// It returns the model and the path of a configured adapter; empty for one without a path.
func (c *catalog) adapterPath(adapter string) (model, path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.settings.Models {
		m := &c.settings.Models[i]
		for _, a := range m.Adapters {
			if a.Name == adapter {
				return m.Name, a.Path
			}
		}
	}
	return "", ""
}

// blockSize returns the tokens of a block by which a worker's cache is searched; 0 while they are unknown. Events with another block size
// cannot match a prompt, and are counted.
func (c *catalog) blockSize(w *fleet.Worker) int {
	if sizes := c.blockSizes.Load(); sizes != nil {
		return (*sizes)[w.Model].Of(w)
	}
	return w.TokensPerBlock()
}

// queueConfig returns the queue of a model; nil if its requests do not wait. Without configured classes there
// is one class without a name.
func queueConfig(m *config.Model) *queue.Config {
	q := &m.Router.Queue
	if q.MaxWait == 0 && m.Holds() == 0 {
		return nil
	}

	cfg := &queue.Config{Limit: queue.Limit{Requests: q.Requests, Tokens: q.Tokens, CachedTokens: q.CachedTokens}}
	for i := range q.Classes {
		c := &q.Classes[i]
		cfg.Classes = append(cfg.Classes, queue.Class{
			Name: c.Name, Quantum: c.Quantum, Order: orderOf(c.Order), Fair: q.Fair,
			Limit: queue.Limit{Requests: c.Requests, Tokens: c.Tokens, CachedTokens: c.CachedTokens},
		})
	}
	if len(cfg.Classes) == 0 {
		cfg.Classes = []queue.Class{{Order: orderOf(q.Order), Fair: q.Fair}}
	}
	return cfg
}

// orderOf returns the order of that name. The configuration has validated it, so there is no error.
func orderOf(name string) queue.Order {
	order, _ := queue.ParseOrder(name)
	return order
}

// decodeRole returns the choice for decode workers if it differs; else nil.
func decodeRole(r *config.Router, c cost.Function) map[fleet.Role]serving.Choice {
	if r.DecodePolicy == "" {
		return nil
	}
	return map[fleet.Role]serving.Choice{fleet.Decode: {Policy: r.DecodePolicy, Temperature: r.Temperature, Cost: c}}
}
