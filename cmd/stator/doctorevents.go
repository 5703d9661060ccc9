package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
)

// The checks of events, of what they led the router to believe, and of hashes.

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

// checkDrift reads what the router itself has found by comparing promise and report.
func checkDrift(o *observation) (found []finding) {
	const apart = 0.25 // of prompt tokens
	for _, w := range o.workers {
		of := func(name string) float64 {
			return o.router.later[fmt.Sprintf("stator_feed_%s{worker=%q}", name, w.name)]
		}
		ratio, resyncs := of("drift_ratio"), of("drift_resyncs_total")
		if ratio > -apart && ratio < apart && resyncs < 2 {
			continue
		}
		f := finding{
			Subject: "worker " + w.name, What: fmt.Sprintf("%.0f %% of its prompt tokens were promised to be cached and were not", 100*ratio),
			Why:    "requests go there for a cache that it has not",
			Remedy: "does another process answer at its event socket, does a second router or agent write its name, was its cache reset? Restart the engine if not",
		}
		switch {
		case ratio <= -apart:
			f.What = fmt.Sprintf("%.0f %% of its prompt tokens were cached and not promised", -100*ratio)
			f.Why = "its cache is hit by chance and could be hit by choice"
			f.Remedy = "are its events complete, and is the model folder the engine's? Other clients that go there directly look the same"
		case ratio < apart:
			f.What = fmt.Sprintf("what was known of its cache turned out wrong %.0f times and was built up anew", resyncs)
		}
		found = append(found, f)
	}
	return found
}

// checkEngineHashes compares the engines of a model: the same first block should have the same
// hash on all, or blocks cannot be passed between them.
func checkEngineHashes(o *observation) (found []finding) {
	if found = checkHashAlgorithms(o); len(found) > 0 {
		return found
	}
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
					Why: hashesMatter, Remedy: hashesRemedy,
				})
			}
		}
	}
	return found
}

// checkHashAlgorithms sees from what engines say of themselves that their hashes will differ.
func checkHashAlgorithms(o *observation) (found []finding) {
	for _, m := range o.models {
		first := map[string]string{} // algorithm -> worker
		for _, w := range o.workers {
			algo := w.engine.hashAlgo
			if w.model != m.name || algo == "" || w.kind == "sim" {
				continue
			}
			if _, same := first[algo]; !same && len(first) > 0 || same && strings.HasPrefix(algo, "xxhash") {
				found = append(found, finding{
					Subject: "worker " + w.name, What: fmt.Sprintf("it hashes by %s, and other engines of model %s do by another way or seed", algo, m.name),
					Why: hashesMatter, Remedy: hashesRemedy,
				})
			}
			first[algo] = w.name
		}
	}
	return found
}

const (
	hashesMatter = "routing is not affected; blocks in shared tiers and transfers between them are not found"
	hashesRemedy = "give all engines of the model one --prefix-caching-hash-algo (sha256; xxhash is seeded at random), one PYTHONHASHSEED and the same version"
)

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
