package extproc

import (
	"cmp"
	"context"
	"maps"

	"github.com/stator-project/stator/internal/config"
)

// followEngineLengths replaces the models when the context length of their engines changes, until ctx ends.
//
// An engine reports it as max_model_len, and it is the engine's own setting. With the length of the model's files the
// router would refuse prompts that the engine serves, or send it prompts that it refuses.
func (r *Router) followEngineLengths(ctx context.Context) {
	for {
		changed := r.fleet.Changed()
		r.applyEngineLengths()

		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// applyEngineLengths replaces the models if the engines of one of them have another context length now. Bookings, queues
// and cache states stay, as with a reload.
func (r *Router) applyEngineLengths() {
	r.modelsMu.Lock()
	defer r.modelsMu.Unlock()

	lengths := r.engineLengthsLocked(r.settings)
	if maps.Equal(lengths, r.engineLengths) {
		return // most changes of the fleet are others
	}
	if err := r.setModelsLocked(r.settings, lengths); err != nil {
		r.log.Error("models not replaced; the context length of their engines is not used", "err", err)
	}
}

// engineLengthsLocked returns the context lengths of the engines by model, in tokens, of the models that have no
// configured one. It is the largest of the model's engines: a prompt that one of them accepts must not be refused.
//
// A model keeps its length while none of its workers reports one. Otherwise the restart of an only engine would bring
// back the length of the files for a moment, and prompts would be refused that the engine accepts.
func (r *Router) engineLengthsLocked(settings *config.Config) map[string]int {
	reported := map[string]int{}
	for _, w := range r.fleet.Snapshot().Workers {
		reported[w.Model] = max(reported[w.Model], w.MaxModelLen)
	}

	lengths := map[string]int{}
	for i := range settings.Models {
		m := &settings.Models[i]
		length := cmp.Or(reported[m.Name], r.engineLengths[m.Name])
		if m.ContextLength == 0 && length > 0 {
			lengths[m.Name] = length
		}
	}
	return lengths
}

// setEngineLengthsLocked records the lengths that the models have now, and logs those that are new.
func (r *Router) setEngineLengthsLocked(lengths map[string]int) {
	for model, tokens := range lengths {
		if tokens != r.engineLengths[model] {
			r.log.Info("context length of the model is that of its engines", "model", model, "tokens", tokens)
		}
	}
	r.engineLengths = lengths
}
