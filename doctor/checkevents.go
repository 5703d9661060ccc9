package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/kvsource"
)

// The checks of event sockets, and of the router's cache states that events lead to.

// checkEventSocket explains, from the engine's report, a socket that cannot be connected to.
func checkEventSocket(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		for _, s := range w.sockets {
			// An agent may reach a socket that the doctor cannot reach.
			_, now, _ := o.cacheOf(w.name, s.rank)
			if s.err == nil || now.State == "exact" {
				continue
			}
			return Finding{
				What:   fmt.Sprintf("its event socket %s of rank %d cannot be connected to: %v", s.endpoint, s.rank, s.err),
				Why:    "the router receives no KV events from it, and estimates its cache from the requests that were sent there",
				Remedy: remedyForSocket(w, s),
			}, true
		}
		return Finding{}, false
	})
}

func remedyForSocket(w *workerSeen, s socketSeen) string {
	e := &w.engine
	i := slices.IndexFunc(e.sources, func(f kvsource.Socket) bool { return f.Rank == s.rank })
	switch {
	case e.sourcesErr == nil && len(e.sources) == 0 || e.eventsOff || w.kind.Dialect == engines.NoEvents:
		return "the engine publishes no events: " + w.kind.Remedies.Events
	case i >= 0 && e.sources[i].Endpoint != s.endpoint:
		return fmt.Sprintf("the engine publishes at %s: set the worker's kvEvents to the address of rank 0", e.sources[i].Endpoint)
	case i >= 0 && e.sources[i].NamesHost:
		return "its endpoint names a host, so the engine connects there and does not bind: set the endpoint in --kv-events-config to " +
			"tcp://*:PORT"
	case i >= 0:
		return "the engine reports that it binds this address: look for a firewall or a container's network between it and this machine"
	}
	return cmp.Or(w.kind.Remedies.Socket, "compare the port with the engine's --kv-events-config, whose endpoint must be tcp://*:PORT; "+
		"with a host instead of *, the engine connects and does not bind")
}

func checkEventsUnused(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		if !w.fromFile || w.kvEvents != "" || len(w.engine.sources) == 0 {
			return Finding{}, false
		}

		at := w.engine.sources[0]
		remedy := fmt.Sprintf("set its kvEvents to %q", at.Endpoint)
		if at.Replay != "" {
			remedy += fmt.Sprintf(" and kvReplay to %q", at.Replay)
		}
		return Finding{
			What:   "it publishes events that no router reads, because the worker has no kvEvents",
			Why:    "its cache is estimated from the requests that were sent there, and evictions are not seen",
			Remedy: remedy,
		}, true
	})
}

func checkEventsArrive(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		for _, s := range w.sockets {
			_, now, ok := o.cacheOf(w.name, s.rank)
			if s.err != nil || !ok || now.State != "none" {
				continue
			}

			f := Finding{Why: "the router estimates its cache from the requests that were sent there"}
			switch {
			case s.messages > 0:
				f.What = fmt.Sprintf("rank %d published %s, and none reached the router", s.rank, count(s.messages, "message"))
				f.Remedy = "check that the router, or the agent that relays the events, can reach the socket, and that its " +
					"configuration names this socket"
			case w.engine.hasServed:
				f.What = fmt.Sprintf("it has served requests, and the router has received no events of rank %d", s.rank)
				f.Remedy = w.kind.Remedies.Events
			case w.engine.queries > 0:
				f.What = fmt.Sprintf("rank %d computed prompts of %.0f tokens and published nothing", s.rank, w.engine.queries)
				f.Remedy = "check that its events are enabled, and that no other process answers at this port: " + w.kind.Remedies.Events
				if !s.hadReplay {
					f.Remedy += "; set kvReplay, so that past events can be read"
				}
			default:
				continue // idle since its start
			}
			return f, true
		}
		return Finding{}, false
	})
}

func checkEventsUnderstood(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		for _, s := range w.sockets {
			f := Finding{Why: "the changes of its cache in these events are lost"}
			switch {
			case s.malformed > 0:
				f.What = fmt.Sprintf("%d of %s of rank %d cannot be decoded", s.malformed, count(s.messages, "message"), s.rank)
				if s.parseError != "" {
					f.What += ": " + s.parseError
				}
				f.Remedy = "check that the worker's `engine` is the engine that runs there, and that the port is that of its events"
			case s.unknown > 0:
				f.What = fmt.Sprintf("%s of rank %d have an unknown kind", count(s.unknown, "event"), s.rank)
				f.Remedy = "the engine may be newer than this program: look for an update"
			default:
				continue
			}
			return f, true
		}
		return Finding{}, false
	})
}

func checkEventContent(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		for _, s := range w.sockets {
			if s.noTokens*2 > s.stored {
				return Finding{
					What:   fmt.Sprintf("%d of %d blocks that rank %d stored came without their tokens", s.noTokens, s.stored, s.rank),
					Why:    "a block without tokens cannot be found by a prompt",
					Remedy: "use a version and options of the engine whose BlockStored events carry the token_ids of whole blocks",
				}, true
			}
		}
		return Finding{}, false
	})
}

// checkCacheState finds ranks whose cache state is stale, or syncing without progress.
func checkCacheState(o *observation) (found []Finding) {
	for _, now := range o.router.after {
		before, _, _ := o.cacheOf(now.Worker, now.Rank)
		f := Finding{
			Subject: "worker " + now.Worker,
			Why:     "cached prefixes may be missed, and blocks that were evicted may count as cached for a while",
		}
		switch {
		case now.State == "stale" && now.Lost > 0:
			f.What = fmt.Sprintf("the cache state of rank %d is incomplete: events were lost %s and no replay had them", now.Rank,
				times(now.Lost))
			f.Remedy = "give the engine a replay_endpoint and the worker its kvReplay; raise buffer_steps where it has a replay_endpoint"
		case now.State == "stale" && now.Reason == "block_size":
			continue // another check reports it
		case now.State == "stale" && now.Reason == "unreadable":
			f.What = fmt.Sprintf("the cache state of rank %d is stale: events of it could not be decoded", now.Rank)
			f.Remedy = "compare the engine's version with those that Stator supports; the state ends when its cache was empty once"
		case now.State == "stale" && now.Reason == "agent":
			f.What = fmt.Sprintf("the cache state of rank %d is stale: its agent does not have the cache exactly", now.Rank)
			f.Remedy = "name the agent's admin port with --agent to find the cause"
		case now.State == "stale" && now.Reason == "promise":
			f.What = fmt.Sprintf("the cache state of rank %d is stale: its engine found none of the blocks that it had reported",
				now.Rank)
			f.Remedy = "call /reset_prefix_cache once more, or restart the engine: it must report that its cache is empty"
		case now.State == "stale":
			f.What = fmt.Sprintf("the cache state of rank %d is stale: its events have stopped", now.Rank)
			f.Remedy = "check the engine, its socket, its agent and the bus; a finding above may name the cause"
		case now.State == "syncing" && before.State == "syncing" && equalSeq(before.Seq, now.Seq):
			f.What = fmt.Sprintf("rank %d has waited %s for missing events", now.Rank, o.router.watched.Round(time.Second))
			f.Remedy = "check that its replay socket answers; set kvReplay, or look at the agent's log"
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

func equalSeq(a, b *uint64) bool { return a == b || a != nil && b != nil && *a == *b }

// times writes how often something happened.
func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func checkEpoch(o *observation) (found []Finding) {
	for _, c := range []struct{ reason, what, remedy string }{
		{
			"wrong_epoch", "events come from an engine process that is not in the fleet",
			"check that one agent alone runs each worker name, and that no engine restarts without its agent",
		},
		{
			"unknown_worker", "events come from workers or ranks that are not in the fleet",
			"check that the worker's ranks equal the engine's data-parallel size, and that every agent uses this configuration",
		},
	} {
		const name = "stator_feed_ignored_total"
		n := o.router.metricsNow.Sum(name, "reason", c.reason) - o.router.metricsThen.Sum(name, "reason", c.reason)
		if n > 0 {
			found = append(found, Finding{
				Subject: "router", What: fmt.Sprintf("%s: %s during this check", c.what, batches(n)),
				Why: "these events are ignored, so the router has no cache state of that rank", Remedy: c.remedy,
			})
		}
	}
	return found
}

func batches(n float64) string {
	if n == 1 {
		return "1 batch"
	}
	return fmt.Sprintf("%.0f batches", n)
}
