package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
)

// eachAnswering runs a check on every worker whose engine answered, and sets the subject of findings.
func eachAnswering(o *observation, check func(w *workerSeen, m *modelSeen) (Finding, bool)) (found []Finding) {
	for i := range o.workers {
		w := &o.workers[i]
		if w.engine.err != nil {
			continue
		}
		if f, wrong := check(w, o.model(w.model)); wrong {
			f.Subject = "worker " + w.name
			found = append(found, f)
		}
	}
	return found
}

// eachRead is eachAnswering for the workers of models whose prompts are read. The caches of others have no effect on routing.
func eachRead(o *observation, check func(w *workerSeen, m *modelSeen) (Finding, bool)) []Finding {
	return eachAnswering(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		if m != nil && m.path == "" {
			return Finding{}, false
		}
		return check(w, m)
	})
}

func checkEngine(o *observation) (found []Finding) {
	for _, w := range o.workers {
		if w.engine.err == nil {
			continue
		}
		f := Finding{
			Subject: "worker " + w.name, What: fmt.Sprintf("its engine at %s does not answer /v1/models: %v", w.address, w.engine.err),
			Why:    "requests sent there fail or wait",
			Remedy: "start the engine, or correct the worker's address",
		}
		var refused *enginetls.Error
		switch {
		case errors.As(w.engine.err, &refused):
			f.What = fmt.Sprintf("there is no connection to its engine at %s: %s (%v)", w.address, refused.What, refused.Err)
			f.Remedy = refused.Remedy
		case w.engine.needsTLS:
			f.What = fmt.Sprintf("its engine at %s speaks TLS, and the configuration has no engineTLS for it", w.address)
			f.Remedy = "set engineTLS.caFile to the authority of its certificate, and engineTLS.serverName to a DNS name in it; " +
				"engineTLS.except must not have its address"
		}
		found = append(found, f)
	}
	return found
}

func checkServedName(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		var ids []string
		for _, s := range w.engine.served {
			ids = append(ids, s.ID)
			if m == nil || slices.Contains(m.names, s.ID) {
				return Finding{}, false
			}
		}
		if len(ids) == 0 || m == nil || w.kind.AnyModelName {
			return Finding{}, false
		}

		return Finding{
			What:   fmt.Sprintf("it serves %s and not %s", strings.Join(ids, ", "), m.name),
			Why:    "it refuses every request that is sent there",
			Remedy: fmt.Sprintf("start it with --served-model-name %s, or rename the model, or add an alias", m.name),
		}, true
	})
}

func checkTokenizer(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		if m == nil || m.err != nil || len(w.engine.tokens) != len(m.tokens) {
			return Finding{}, false
		}

		for i, theirs := range w.engine.tokens {
			ours := m.tokens[i]
			if theirs == nil || ours == nil || slices.Equal(ours, theirs) {
				continue
			}
			remedy := "set models[].path to the folder that the engine loads"
			if isChat(i) {
				remedy += ", or give it the engine's chat template: texts without a chat have equal tokens"
			}
			return Finding{
				What: fmt.Sprintf("%s has %s on the engine and %d here; token %d differs",
					sampleName(i), count(len(theirs), "token"), len(ours), firstDifference(ours, theirs)),
				Why:    "other tokens have other block hashes, so no prompt is found in its cache",
				Remedy: remedy + " (configured: " + m.path + ")",
			}, true
		}
		return Finding{}, false
	})
}

func sampleName(sample int) string {
	if isChat(sample) {
		return "a chat"
	}

	const most = 24 // characters
	text := []rune(sampleTexts[sample])
	if len(text) > most {
		return fmt.Sprintf("the text %q", string(text[:most])+"…")
	}
	return fmt.Sprintf("the text %q", string(text))
}

// firstDifference returns the index of the first token that differs.
func firstDifference(a, b []uint32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func checkContextLength(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		if m == nil {
			return Finding{}, false
		}

		routed := o.routedLength(m)
		for _, s := range w.engine.served {
			if !slices.Contains(m.names, s.ID) || s.MaxLen == 0 || routed == 0 || s.MaxLen == routed {
				continue
			}
			f := Finding{What: fmt.Sprintf("its max_model_len is %d, and the context length of model %s is %d", s.MaxLen, m.name, routed)}
			if s.MaxLen < routed {
				f.Why = "longer prompts are sent there, wait, and are then refused by the engine"
				f.Remedy = "raise --max-model-len of the engine, or set models[].contextLength to its value"
			} else {
				f.Why = "the router refuses prompts that the engine would serve"
				f.Remedy = "set models[].contextLength to the engine's max_model_len"
			}
			return f, true
		}
		return Finding{}, false
	})
}

// routedLength returns the context length that the router uses for a model, in tokens; 0 is unknown. Without
// models[].contextLength it is the largest of the model's engines.
func (o *observation) routedLength(m *modelSeen) int {
	if m.lengthIsSet {
		return m.contextLength
	}

	longest := 0
	for i := range o.workers {
		w := &o.workers[i]
		if w.model == m.name && len(w.engine.served) > 0 {
			longest = max(longest, w.engine.served[0].MaxLen)
		}
	}
	return cmp.Or(longest, m.contextLength)
}

// reportedBlockSize returns the engine's block size and the source that it was read from. Events count
// first, because metrics show the configured size even if the engine uses another.
func (w *workerSeen) reportedBlockSize() (size int, source string) {
	for _, s := range w.sockets {
		if s.blockSize > 0 {
			return s.blockSize, "its events"
		}
	}
	if w.kind.Pages == engines.SGLangPages {
		return w.engine.blockSize, "its options"
	}
	return w.engine.blockSize, "its metrics"
}

// blockSizes returns the block sizes of a model as the router finds them.
func (o *observation) blockSizes(m *modelSeen) config.BlockSizes {
	reported := map[int]int{}
	for i := range o.workers {
		if w := &o.workers[i]; w.model == m.name {
			if size, _ := w.reportedBlockSize(); size > 0 {
				reported[size]++
			}
		}
	}
	sizes := config.NewBlockSizes(m.blockSize, reported)
	sizes.Model = cmp.Or(sizes.Model, fleet.DefaultBlockSize)
	return sizes
}

// checkBlockSize finds engines whose block size is not the configured one, or does not go with the sizes of the model's other engines.
func checkBlockSize(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		size, source := w.reportedBlockSize()
		if m == nil || size == 0 {
			return Finding{}, false
		}

		sizes := o.blockSizes(m)
		fits := slices.Contains(sizes.Engines, size)
		f := Finding{What: fmt.Sprintf("its blocks have %s according to %s", count(size, "token"), source)}
		switch {
		case m.blockSize > 0 && size != m.blockSize:
			f.What += fmt.Sprintf(", and models[].blockSize of model %s is %d", m.name, m.blockSize)
			f.Why = "the number counts for engines without events: predictions of their caches are wrong"
			f.Remedy = "leave models[].blockSize out, or "
		case size < config.MinAutoBlockSize:
			f.What += fmt.Sprintf(", and the least that model %s can have is %d", m.name, config.MinAutoBlockSize)
		case !fits:
			f.What += fmt.Sprintf(", which does not go with the blocks of model %s of %d", m.name, sizes.Model)
		}
		if !fits {
			f.Why = "the router has no blocks that divide them: its events are ignored, and no prompt is found in its cache"
		}
		f.Remedy += fmt.Sprintf(cmp.Or(w.kind.Remedies.BlockSize, "give the engine blocks of %d tokens"), cmp.Or(m.blockSize, sizes.Model))
		return f, f.Why != ""
	})
}

func checkPrefixCaching(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		if w.engine.mode == fleet.Decode.String() {
			return Finding{}, false // SGLang turns it off in this mode: the blocks of decode workers come from others
		}
		return Finding{
			What:   "its prefix cache is off",
			Why:    "it computes every prompt in full, so routing by cache has no effect",
			Remedy: w.kind.Remedies.Caching,
		}, w.engine.cachingOff
	})
}
