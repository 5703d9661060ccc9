package main

import (
	"fmt"
	"slices"
	"strings"
)

// checks are pure: each looks at what was observed and says what is wrong. Where an earlier
// finding explains what a check sees, the check is silent.
var checks = []struct {
	name string
	run  func(o *observation) []finding
}{
	{"router", checkRouter},
	{"bus", checkBus},
	{"file", checkFile},
	{"model", checkModel},
	{"engine", checkEngine},
	{"served-name", checkServedName},
	{"tokenizer", checkTokenizer},
	{"context-length", checkContextLength},
	{"block-size", checkBlockSize},
	{"prefix-caching", checkPrefixCaching},
	{"event-socket", checkEventSocket},
	{"events-unused", checkEventsUnused},
	{"events-arrive", checkEventsArrive},
	{"events-understood", checkEventsUnderstood},
	{"event-content", checkEventContent},
	{"knowledge", checkKnowledge},
	{"epoch", checkEpoch},
	{"clock", checkClock},
	{"hit-rate", checkHitRate},
	{"drift", checkDrift},
	{"engine-hashes", checkEngineHashes},
}

func checkRouter(o *observation) []finding {
	r := &o.router
	switch {
	case r.err != nil:
		return []finding{{
			Subject: "router", What: fmt.Sprintf("its admin port %s does not answer: %v", r.address, r.err),
			Why:    "nothing is known of what the router knows; if it is down, Envoy sends requests on without a pick",
			Remedy: "start `stator extproc` or `stator up`, or name its address with --admin",
		}}
	case r.ready != nil:
		return []finding{{
			Subject: "router", What: fmt.Sprintf("it is not ready: %v", r.ready),
			Why: "requests for a model without a ready worker are refused", Remedy: "look at /debug/fleet and at the agents' logs for why engines do not start",
		}}
	}
	return nil
}

func checkBus(o *observation) []finding {
	if o.busErr == nil {
		return nil
	}
	return []finding{{
		Subject: "bus", What: fmt.Sprintf("%s cannot be reached: %v", o.busURL, o.busErr),
		Why: "routers hear of no new workers, events or bookings; what they know of caches goes stale", Remedy: "start `stator bus`, or correct bus.url",
	}}
}

func checkFile(o *observation) (found []finding) {
	if o.router.err != nil {
		return nil
	}
	for i := range o.workers {
		w := &o.workers[i]
		if w.fromFile && !w.known {
			found = append(found, finding{
				Subject: "worker " + w.name, What: "the file names it and the router does not have it",
				Why: "it gets no requests, and nothing else here is sure to be about that router", Remedy: "restart the router with this file, or pass doctor the file that it runs with",
			})
		}
	}
	return found
}

func checkModel(o *observation) (found []finding) {
	for _, m := range o.models {
		if m.err != nil {
			found = append(found, finding{
				Subject: "model " + m.name, What: m.err.Error(),
				Why: "its prompts cannot be tokenized, so no request for it is routed by cache", Remedy: "set models[].path to the folder that the engines load",
			})
		}
	}
	return found
}

// answering calls check for every worker whose engine answered.
func answering(o *observation, check func(w *workerSeen, m *modelSeen) (finding, bool)) (found []finding) {
	for i := range o.workers {
		w := &o.workers[i]
		if w.engine.err != nil {
			continue
		}
		if f, bad := check(w, o.model(w.model)); bad {
			f.Subject = "worker " + w.name
			found = append(found, f)
		}
	}
	return found
}

func checkEngine(o *observation) (found []finding) {
	for _, w := range o.workers {
		if w.engine.err != nil {
			found = append(found, finding{
				Subject: "worker " + w.name, What: fmt.Sprintf("its engine at %s does not answer /v1/models: %v", w.address, w.engine.err),
				Why: "requests sent there fail or wait", Remedy: "start the engine, or correct the worker's address",
			})
		}
	}
	return found
}

func checkServedName(o *observation) []finding {
	return answering(o, func(w *workerSeen, m *modelSeen) (f finding, bad bool) {
		var ids []string
		for _, s := range w.engine.served {
			ids = append(ids, s.ID)
			if m == nil || slices.Contains(m.names, s.ID) {
				return f, false
			}
		}
		if len(ids) == 0 || m == nil || w.kind == "llamacpp" { // llama.cpp takes any name
			return f, false
		}
		return finding{
			What: fmt.Sprintf("it serves %s and not %s", strings.Join(ids, ", "), m.name),
			Why:  "it refuses every request that is sent there", Remedy: fmt.Sprintf("start it with --served-model-name %s, or rename the model or give it an alias", m.name),
		}, true
	})
}

func checkTokenizer(o *observation) []finding {
	return answering(o, func(w *workerSeen, m *modelSeen) (f finding, bad bool) {
		if m == nil || m.err != nil || len(w.engine.tokens) != len(m.tokens) {
			return f, false
		}
		for i, theirs := range w.engine.tokens {
			ours := m.tokens[i]
			if theirs == nil || ours == nil || slices.Equal(ours, theirs) {
				continue
			}
			what := fmt.Sprintf("the text %q", cutText(doctorTexts[min(i, len(doctorTexts)-1)]))
			remedy := "set models[].path to the folder that the engine loads"
			if i == len(doctorTexts) {
				what = "a chat"
				remedy += ", or give it the engine's chat template: the texts without a chat agree"
			}
			return finding{
				What: fmt.Sprintf("%s is %d tokens to the engine and %d to us, different from number %d on", what, len(theirs), len(ours), differAt(ours, theirs)),
				Why:  "blocks of other tokens have other hashes: no prompt is found in its cache", Remedy: remedy + " (ours: " + m.path + ")",
			}, true
		}
		return f, false
	})
}

func cutText(s string) string {
	if r := []rune(s); len(r) > 24 {
		return string(r[:24]) + "…"
	}
	return s
}

func differAt(a, b []uint32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func checkContextLength(o *observation) []finding {
	return answering(o, func(w *workerSeen, m *modelSeen) (f finding, bad bool) {
		if m == nil || m.contextLength == 0 {
			return f, false
		}
		for _, s := range w.engine.served {
			if !slices.Contains(m.names, s.ID) || s.MaxLen == 0 || s.MaxLen == m.contextLength {
				continue
			}
			f = finding{What: fmt.Sprintf("its max_model_len is %d, ours of model %s is %d", s.MaxLen, m.name, m.contextLength)}
			if s.MaxLen < m.contextLength {
				f.Why = "longer prompts are sent there and refused by the engine, after they have waited"
				f.Remedy = "raise --max-model-len of the engine, or lower max_position_embeddings in a copy of the model's config.json"
			} else {
				f.Why = "we refuse prompts that the engine would serve"
				f.Remedy = "set max_position_embeddings in the model's config.json to what the engine serves"
			}
			return f, true
		}
		return f, false
	})
}

// sizesSaid are the block sizes that an engine names: in its metrics and in its events.
func (w *workerSeen) sizesSaid() (size int, where string) {
	for _, s := range w.sockets {
		if s.blockSize > 0 {
			return s.blockSize, "its events"
		}
	}
	return w.engine.blockSize, "its metrics"
}

func checkBlockSize(o *observation) []finding {
	return answering(o, func(w *workerSeen, m *modelSeen) (f finding, bad bool) {
		size, where := w.sizesSaid()
		if m == nil || size == 0 || size == m.blockSize {
			return f, false
		}
		return finding{
			What: fmt.Sprintf("its blocks have %d tokens, as %s say, and prompts of model %s are cut by %d", size, where, m.name, m.blockSize),
			Why:  "no block of ours equals one of its own: every event is ignored, no prompt is found in its cache", Remedy: fmt.Sprintf("set models[].blockSize to %d, or start the engine with --block-size %d", size, m.blockSize),
		}, true
	})
}

func checkPrefixCaching(o *observation) []finding {
	return answering(o, func(w *workerSeen, _ *modelSeen) (finding, bool) {
		return finding{
			What: "its prefix cache is off", Why: "it computes every prompt anew: where requests go cannot matter", Remedy: "start it with --enable-prefix-caching",
		}, w.engine.cachingOff
	})
}
