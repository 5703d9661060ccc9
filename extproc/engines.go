package extproc

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

// engineFacts are the facts that engines report of the models: the part of the models that is not configured.
//
//	fact       reported by            when no worker reports it
//	length     the largest engine     it stays until one does, or a reload sets another
//	block size each engine            it stays until all do
//	adapters   any engine             it ends, unless an engine of the model is starting, or there is none
type engineFacts struct {
	// lengths holds the context length by model, in tokens. A model without one has the length of its files.
	lengths map[string]int
	// blockSizes holds the block sizes by model, of models with a configured or a reported size.
	blockSizes map[string]config.BlockSizes
	// odd holds the block sizes of the workers whose engines have another than is configured, or than their model can have, by worker.
	odd map[string]int
	// adapters holds the models of the LoRA adapters that engines list and no configuration names, by adapter.
	adapters map[string]string
	// contested holds the adapters that engines of a second model list, with that model. It does not get their requests: a
	// worker could take another model's by listing its adapters, and two teams may have chosen one name.
	contested map[string]string
}

func (f engineFacts) equal(other engineFacts) bool {
	return maps.Equal(f.lengths, other.lengths) && maps.EqualFunc(f.blockSizes, other.blockSizes, config.BlockSizes.Equal) &&
		maps.Equal(f.odd, other.odd) && maps.Equal(f.adapters, other.adapters) && maps.Equal(f.contested, other.contested)
}

// follow replaces the models when the context length or the adapters of their engines change, until ctx ends.
//
// An engine reports its length as max_model_len, and it is the engine's own setting. With the length of the model's
// files the router would refuse prompts that the engine serves, or send it prompts that it refuses. Adapters are loaded
// and unloaded while an engine runs.
func (c *catalog) follow(ctx context.Context) {
	for {
		changed := c.fleet.Changed()
		c.applyFacts()

		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// applyFacts replaces the models if their engines report something else now. Bookings, queues and cache states
// stay, as with a reload.
func (c *catalog) applyFacts() {
	c.mu.Lock()
	defer c.mu.Unlock()

	defer c.rebuildSkipped()
	facts := c.factsLocked(c.settings)
	if facts.equal(c.engines) {
		return // most changes of the fleet are others
	}
	if err := c.setLocked(c.settings, facts); err != nil {
		c.log.Error("models not replaced; the context length and the adapters of their engines are not used", "err", err)
	}
}

// factsLocked returns the facts that the engines of these settings' models report now.
func (c *catalog) factsLocked(settings *config.Config) engineFacts {
	workers := c.fleet.Snapshot().Workers
	adapters, contested := c.foundAdaptersLocked(settings, workers)
	sizes := c.engineBlockSizesLocked(settings, workers)
	return engineFacts{
		lengths: c.engineLengthsLocked(settings, workers), blockSizes: sizes, odd: oddBlockSizes(settings, sizes, workers),
		adapters: adapters, contested: contested,
	}
}

// engineLengthsLocked returns the context lengths of the engines by model, in tokens, of the models that have no
// configured one. It is the largest of the model's engines: a prompt that one of them accepts must not be refused.
//
// A model keeps its length while none of its workers reports one. Otherwise the restart of an only engine would bring
// back the length of the files for a moment, and prompts would be refused that the engine accepts.
func (c *catalog) engineLengthsLocked(settings *config.Config, workers []*fleet.Worker) map[string]int {
	reported := map[string]int{}
	for _, w := range workers {
		reported[w.Model] = max(reported[w.Model], w.MaxModelLen)
	}

	lengths := map[string]int{}
	for i := range settings.Models {
		m := &settings.Models[i]
		length := cmp.Or(reported[m.Name], c.engines.lengths[m.Name])
		if m.ContextLength == 0 && length > 0 {
			lengths[m.Name] = length
		}
	}
	return lengths
}

// engineBlockSizesLocked returns the block sizes of the models' engines by model; see [config.BlockSizes]. A size that no engine reports
// any more stays while an engine of the model has reported none, or there is no engine: the restart of an engine does not change the
// blocks of requests that wait.
func (c *catalog) engineBlockSizesLocked(settings *config.Config, workers []*fleet.Worker) map[string]config.BlockSizes {
	votes := map[string]map[int]int{} // workers by model and size
	for i := range settings.Models {
		votes[settings.Models[i].Name] = map[int]int{}
	}
	silent := map[string]bool{} // models with workers without a report
	for _, w := range workers {
		switch of, size := votes[w.Model], w.TokensPerBlock(); {
		case size == 0:
			silent[w.Model] = true
		case of != nil:
			of[size]++
		}
	}

	sizes := map[string]config.BlockSizes{}
	for i := range settings.Models {
		m := &settings.Models[i]
		reported := votes[m.Name]
		if m.BlockSize == config.AutoBlockSize && (silent[m.Name] || len(reported) == 0) {
			for _, size := range c.engines.blockSizes[m.Name].Engines {
				reported[size] += 0 // known, and without a vote
			}
		}
		if s := config.NewBlockSizes(int(m.BlockSize), reported); s.Model > 0 {
			sizes[m.Name] = s
		}
	}
	return sizes
}

// oddBlockSizes returns the workers whose engines have another block size than is configured, or one that the model has no blocks for. A
// size that was reported to this process counts before the one in the lease, which an older agent may have taken from its configuration.
func oddBlockSizes(settings *config.Config, sizes map[string]config.BlockSizes, workers []*fleet.Worker) map[string]int {
	configured := map[string]int{}
	for i := range settings.Models {
		configured[settings.Models[i].Name] = int(settings.Models[i].BlockSize)
	}

	odd := map[string]int{}
	for _, w := range workers {
		// Both are named: a wrong number in the configuration makes wrong predictions for engines without events, and a size without blocks
		// makes the events of its engine useless.
		reported := cmp.Or(w.Figures.BlockSize.Value, w.BlockSize)
		if reported == 0 || sizes[w.Model].Model == 0 {
			continue
		}
		if want := configured[w.Model]; want > 0 && reported != want || sizes[w.Model].Of(w) != w.TokensPerBlock() {
			odd[w.Name] = reported
		}
	}
	return odd
}

// maxFoundAdapters bounds the adapters of one model that are found at engines.
const maxFoundAdapters = 4096

// foundAdaptersLocked returns the adapters that the models' engines list, with their models. A configured name keeps its meaning in the
// configuration. Of two models with an adapter of one name, the one has it that had it before, or else the first in the configuration: a
// worker must not get another model's requests by listing its adapter.
//
// While a worker of a model is starting, the model keeps the adapters that it has. Otherwise the restart of an only engine
// would turn "not ready" into "does not exist", after which clients do not try again.
func (c *catalog) foundAdaptersLocked(settings *config.Config, workers []*fleet.Worker) (found, contested map[string]string) {
	listed := map[string]map[fleet.Adapters]bool{} // workers mostly have the same ones, so each list is read once
	starting := map[string]bool{}
	for _, w := range workers {
		if listed[w.Model] == nil {
			listed[w.Model] = map[fleet.Adapters]bool{}
		}
		listed[w.Model][w.Adapters] = true
		starting[w.Model] = starting[w.Model] || !w.Adapters.Known() && w.State != fleet.Ready
	}

	// Names are taken in the order of the configuration, and sorted within a model, so that every replica finds the same.
	taken := configuredNames(settings)
	found, contested = map[string]string{}, map[string]string{}
	byModel := map[string]map[string]bool{}
	for i := range settings.Models {
		model := settings.Models[i].Name
		names := map[string]bool{}
		byModel[model] = names
		for adapters := range listed[model] {
			for _, name := range adapters.Names() {
				names[name] = true
			}
		}
		for name, of := range c.engines.adapters {
			if of == model && (starting[model] || listed[model] == nil) {
				names[name] = true
			}
		}
	}

	// A name whose model does not list it any more is free. Replicas that start meanwhile do not know which model had it
	// first, and take the first of the configuration.
	for i := range settings.Models {
		model := settings.Models[i].Name
		// Engines could list any number, and each becomes a model of the router.
		room := maxFoundAdapters
		for _, name := range slices.Sorted(maps.Keys(byModel[model])) {
			owner := c.engines.adapters[name]
			switch {
			case taken[name] && found[name] == "": // the configuration has it
			case taken[name], owner != model && byModel[owner][name]:
				contested[name] = model
			case room > 0:
				room--
				taken[name] = true
				found[name] = model
			}
		}
	}
	return found, contested
}

// configuredNames returns the names that the configuration gives to models, aliases and adapters.
func configuredNames(settings *config.Config) map[string]bool {
	names := map[string]bool{}
	for i := range settings.Models {
		m := &settings.Models[i]
		for _, name := range m.Names() {
			names[name] = true
		}
		for _, a := range m.Adapters {
			names[a.Name] = true
		}
	}
	return names
}

// setFactsLocked records the facts of which the models were made, and logs new ones.
func (c *catalog) setFactsLocked(facts engineFacts) {
	for model, tokens := range facts.lengths {
		if tokens != c.engines.lengths[model] {
			c.log.Info("context length of the model is that of its engines", "model", model, "tokens", tokens)
		}
	}
	for model, sizes := range facts.blockSizes {
		if !sizes.Equal(c.engines.blockSizes[model]) {
			c.log.Info("block sizes of the model's engines", "model", model, "tokens", sizes.Engines, "prompt_tokens", sizes.Model)
		}
	}
	if !maps.Equal(facts.adapters, c.engines.adapters) {
		c.log.Info("adapters of the engines changed", "before", len(c.engines.adapters), "after", len(facts.adapters))
	}
	c.oddCount.Set(float64(len(facts.odd)))

	for name, model := range facts.contested {
		if c.engines.contested[name] != model {
			c.log.Warn("two models list an adapter of one name; its requests go to the first one", "adapter", name,
				"model", facts.adapters[name], "other", model)
		}
	}
	c.contestedCount.Set(float64(len(facts.contested)))

	known := c.engines.odd
	c.engines = facts
	c.logOdd(known)
}

// logOdd names workers whose engines have other blocks than configured, or than their model can have, once for each size. known has the
// ones that were named before.
func (c *catalog) logOdd(known map[string]int) {
	for name, tokens := range c.engines.odd {
		w := c.fleet.Snapshot().Worker(name)
		if w == nil || tokens == known[name] {
			continue
		}

		log := c.log.With("worker", name, "model", w.Model, "engine_tokens", tokens, "source", w.Figures.BlockSize.Source)
		sizes := c.engines.blockSizes[w.Model]
		if sizes.Of(w) == w.TokensPerBlock() {
			log.Warn("the engine's blocks have another size than models[].blockSize; the number counts for engines without events alone: " +
				"leave it out")
			continue
		}
		log.Warn("the engine's block size does not go with the model's other engines, so no prompt is found in its cache; give all "+
			"engines of a model one size, or multiples of one", "model_tokens", sizes.Model)
	}
}
