package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/workeragent/kvsource"
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

// checkEventSocket explains a socket that cannot be connected to by what the engine says.
func checkEventSocket(o *observation) []finding {
	return answering(o, func(w *workerSeen, _ *modelSeen) (f finding, bad bool) {
		for _, s := range w.sockets {
			_, now, _ := o.feedOf(w.name, s.rank)
			if s.err == nil || now.State == "exact" { // an agent may hear what we cannot reach
				continue
			}
			f = finding{
				What: fmt.Sprintf("its event socket %s of rank %d cannot be connected to: %v", s.endpoint, s.rank, s.err),
				Why:  "the router hears nothing of its cache and guesses from what it sent there",
			}
			f.Remedy = remedyForSocket(w, s)
			return f, true
		}
		return f, false
	})
}

func remedyForSocket(w *workerSeen, s socketSeen) string {
	e := &w.engine
	i := slices.IndexFunc(e.sources, func(f kvsource.Found) bool { return f.Rank == s.rank })
	switch {
	case e.sourcesErr == nil && len(e.sources) == 0:
		return `the engine publishes none: start it with --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'`
	case i >= 0 && e.sources[i].Endpoint != s.endpoint:
		return fmt.Sprintf("the engine names %s: set the worker's kvEvents to that of rank 0", e.sources[i].Endpoint)
	case i >= 0 && e.sources[i].NamesHost:
		return "its endpoint names a host, and then the engine connects there instead of binding: give its --kv-events-config the endpoint tcp://*:PORT"
	case i >= 0:
		return "the engine says that it binds it: is something between here and there, a firewall or a container's network?"
	}
	return `is the port that of the engine's --kv-events-config, and its endpoint tcp://*:PORT? With a host instead of * the engine connects and does not bind`
}

func checkEventsUnused(o *observation) []finding {
	return answering(o, func(w *workerSeen, _ *modelSeen) (f finding, bad bool) {
		if !w.fromFile || w.kvEvents != "" || len(w.engine.sources) == 0 {
			return f, false
		}
		at := w.engine.sources[0]
		remedy := fmt.Sprintf("set its kvEvents to %q", at.Endpoint)
		if at.Replay != "" {
			remedy += fmt.Sprintf(" and kvReplay to %q", at.Replay)
		}
		return finding{
			What: "it publishes events that nobody reads: the worker has no kvEvents",
			Why:  "its cache is guessed from what was sent there; evictions are not seen", Remedy: remedy,
		}, true
	})
}

// feedOf is what the router knew of a rank at the end, and before.
func (o *observation) feedOf(worker string, rank int) (before, after feedRank, ok bool) {
	of := func(list []feedRank) (feedRank, bool) {
		i := slices.IndexFunc(list, func(f feedRank) bool { return f.Worker == worker && f.Rank == rank })
		if i < 0 {
			return feedRank{}, false
		}
		return list[i], true
	}
	after, ok = of(o.router.after)
	before, _ = of(o.router.before)
	return before, after, ok
}

func checkEventsArrive(o *observation) []finding {
	return answering(o, func(w *workerSeen, _ *modelSeen) (f finding, bad bool) {
		for _, s := range w.sockets {
			_, now, ok := o.feedOf(w.name, s.rank)
			if s.err != nil || !ok || now.State != "none" {
				continue
			}
			f.Why = "the router guesses its cache from what was sent there"
			switch {
			case s.messages > 0:
				f.What = fmt.Sprintf("rank %d has published %d messages that we heard, and none has reached the router", s.rank, s.messages)
				f.Remedy = "is the router's way to the socket, or the agent's that relays it, open, and does its configuration name this socket?"
			case w.engine.queries > 0:
				f.What = fmt.Sprintf("rank %d has computed prompts (%.0f tokens) and published nothing", s.rank, w.engine.queries)
				f.Remedy = "are its events enabled (enable_kv_cache_events), and does another process answer at this port?"
				if !s.hadReplay {
					f.Remedy += " A replay_endpoint lets what is past be heard: set kvReplay"
				}
			default:
				continue // idle since its start
			}
			return f, true
		}
		return f, false
	})
}

func checkEventsUnderstood(o *observation) []finding {
	return answering(o, func(w *workerSeen, _ *modelSeen) (f finding, bad bool) {
		for _, s := range w.sockets {
			if s.malformed == 0 && s.unknown == 0 {
				continue
			}
			f = finding{
				What: fmt.Sprintf("%d of %d messages of rank %d cannot be read", s.malformed, s.messages, s.rank),
				Why:  "what they say of its cache is lost", Remedy: "does `engine` of the worker name what runs there, and is the port that of its events?",
			}
			if s.malformed == 0 {
				f.What = fmt.Sprintf("%d events of rank %d are of a kind we do not know", s.unknown, s.rank)
				f.Remedy = "is the engine newer than this program? Look for an update"
			} else if s.said != "" {
				f.What += ": " + s.said
			}
			return f, true
		}
		return f, false
	})
}

func checkEventContent(o *observation) []finding {
	return answering(o, func(w *workerSeen, _ *modelSeen) (f finding, bad bool) {
		for _, s := range w.sockets {
			if s.noTokens*2 > s.stored {
				return finding{
					What: fmt.Sprintf("%d of %d blocks that rank %d stored came without their tokens", s.noTokens, s.stored, s.rank),
					Why:  "such blocks cannot be found by a prompt", Remedy: "give the engine a version and options whose BlockStored events carry token_ids that fill the blocks",
				}, true
			}
		}
		return f, false
	})
}

// checkKnowledge finds ranks that are stale, or that syncing does not get on with.
func checkKnowledge(o *observation) (found []finding) {
	for _, now := range o.router.after {
		before, _, _ := o.feedOf(now.Worker, now.Rank)
		f := finding{
			Subject: fmt.Sprintf("worker %s", now.Worker), Why: "hits are missed, and blocks that were evicted meanwhile may be believed in for a while",
		}
		switch {
		case now.State == "stale" && now.GivenUp > 0:
			f.What = fmt.Sprintf("what is known of rank %d is incomplete: %d times events were lost and no replay had them", now.Rank, now.GivenUp)
			f.Remedy = "give the engine a replay_endpoint and the worker its kvReplay; raise buffer_steps where it has one"
		case now.State == "stale":
			f.What = fmt.Sprintf("what is known of rank %d is stale: its events have stopped", now.Rank)
			f.Remedy = "is the engine, its socket, its agent or the bus gone? The findings above say which"
		case now.State == "syncing" && before.State == "syncing" && sameSeq(before.Seq, now.Seq):
			f.What = fmt.Sprintf("rank %d has waited %s for events that are missing", now.Rank, o.router.watched.Round(time.Second))
			f.Remedy = "does its replay socket answer? Set kvReplay, or look at the agent's log"
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

func sameSeq(a, b *uint64) bool { return a == b || a != nil && b != nil && *a == *b }

func checkEpoch(o *observation) (found []finding) {
	for _, c := range []struct{ reason, what, remedy string }{
		{"wrong_epoch", "events come of an engine process that the fleet does not have", "two agents may tell of one worker name, or an engine restarted behind its agent's back: let one agent own each name"},
		{"unknown_worker", "events come of workers or ranks that the fleet does not have", "does the worker's ranks equal the engine's data-parallel size, and does every agent use this configuration?"},
	} {
		key := fmt.Sprintf("stator_feed_ignored_total{reason=%q}", c.reason)
		if n := o.router.later[key] - o.router.earlier[key]; n > 0 {
			found = append(found, finding{
				Subject: "router", What: fmt.Sprintf("%s: %.0f batches while we looked", c.what, n),
				Why: "they are not applied: that cache is unknown", Remedy: c.remedy,
			})
		}
	}
	return found
}

// clockBound is how far clocks may be apart: restarts are told by timestamps, and messages
// are rarely closer than this.
const clockBound = 2 * time.Second

func checkClock(o *observation) (found []finding) {
	say := func(subject string, ahead time.Duration) {
		if ahead.Abs() < clockBound {
			return
		}
		word := "ahead of"
		if ahead < 0 {
			word = "behind"
		}
		found = append(found, finding{
			Subject: subject, What: fmt.Sprintf("its clock is %s %s ours", ahead.Abs().Round(time.Second), word),
			Why: "an engine's restart is told by its timestamps, and lifetimes are measured by them", Remedy: "run a time service (chrony, systemd-timesyncd) on both machines",
		})
	}
	say("router", o.router.ahead)
	for _, w := range o.workers {
		ahead := w.engine.ahead
		for _, s := range w.sockets { // an old message tells nothing, one from the future does
			if d := s.lastSaid.Sub(s.heard); !s.lastSaid.IsZero() && d > ahead {
				ahead = d
			}
		}
		say("worker "+w.name, ahead)
	}
	return found
}

// checkHitRate compares what the router believed with what engines found in their caches.
func checkHitRate(o *observation) []finding {
	const enough, apart = 20_000, 0.25 // tokens; share of prompts
	prompt, cached := o.router.later["stator_route_prompt_tokens_total"], o.router.later["stator_route_cached_tokens_total"]
	var queries, hits float64
	for _, w := range o.workers {
		queries, hits = queries+w.engine.queries, hits+w.engine.hits
	}
	if prompt < enough || queries < enough {
		return nil
	}
	believed, found := cached/prompt, hits/queries
	if d := believed - found; d > -apart && d < apart {
		return nil
	}
	f := finding{
		Subject: "router", What: fmt.Sprintf("it took %.0f %% of prompt tokens for cached, engines found %.0f %%", 100*believed, 100*found),
		Why: "requests go where the cache is not", Remedy: "mend what else is found here (block size, tokenizer, events); if there is nothing, an engine's events and its cache disagree: restart it",
	}
	if believed < found {
		f.Why = "caches are hit by chance and could be hit by choice"
	}
	return []finding{f}
}

// checkEngineHashes compares the engines of a model: the same first block should have the same
// hash on all, or blocks cannot be passed between them.
func checkEngineHashes(o *observation) (found []finding) {
	type said struct {
		worker string
		hash   kvevent.Engine
	}
	for _, m := range o.models {
		first := map[root]said{}
		for _, w := range o.workers {
			if w.model != m.name {
				continue
			}
			other, differs := "", false
			for _, s := range w.sockets {
				for r, h := range s.roots {
					was, seen := first[r]
					if !seen {
						first[r] = said{w.name, h}
					} else if was.hash != h && was.worker != w.name {
						other, differs = was.worker, true
					}
				}
			}
			if differs && w.kind != "sim" { // simulated engines draw a seed each on purpose
				found = append(found, finding{
					Subject: "worker " + w.name, What: fmt.Sprintf("it hashes the same block differently than %s (%s)", other, hashesBy(o, w.name, other)),
					Why:    "routing is not affected; blocks in shared tiers and transfers between them are not found",
					Remedy: "give all engines of the model one --prefix-caching-hash-algo (sha256), one PYTHONHASHSEED and the same version",
				})
			}
		}
	}
	return found
}

func hashesBy(o *observation, names ...string) string {
	var all []string
	for _, w := range o.workers {
		if slices.Contains(names, w.name) && w.engine.hashAlgo != "" && !slices.Contains(all, w.engine.hashAlgo) {
			all = append(all, w.engine.hashAlgo)
		}
	}
	if len(all) == 0 {
		return "they do not say how"
	}
	return "by " + strings.Join(all, " and ")
}
