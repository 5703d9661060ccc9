package doctor

import (
	"fmt"
	"net"
	"slices"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/kvsource"
)

// The checks of engines' options. docs/engines has a page for each kind of engine; a test compares it with the remedies of the kind.

// checkEngineMetrics finds engines whose load and capacity the router cannot read.
func checkEngineMetrics(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		isReported := w.kind.Pages == engines.DynamoPages && w.engine.workers == 0 // checkFrontend has a finding
		return Finding{
			What:   fmt.Sprintf("its metrics cannot be read: %v", w.engine.metricsErr),
			Why:    "the router does not see the requests that others send there, nor the size of its cache",
			Remedy: w.kind.Remedies.Metrics,
		}, w.engine.metricsErr != nil && !isReported
	})
}

// checkEventsUnlisted finds workers whose event sockets shall be found by asking, and engines that cannot be asked.
func checkEventsUnlisted(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		isAsked := w.fromFile && w.kvEvents != "" && kvsource.Discovered(w.kvEvents)
		if !isAsked || w.engine.sourcesErr == nil || w.kind.Dialect == engines.NoEvents || w.engine.eventsOff {
			return Finding{}, false
		}

		engine := "its engine"
		if w.engine.version != "" {
			engine += fmt.Sprintf(" of version %q", w.engine.version)
		}
		host, _, err := net.SplitHostPort(w.address)
		if err != nil {
			host = "HOST"
		}
		return Finding{
			What: fmt.Sprintf("its kvEvents is %q, and %s does not list its event sockets: %v", w.kvEvents, engine, w.engine.sourcesErr),
			Why:  "the router receives no KV events from it, and estimates its cache from the requests that were sent there",
			Remedy: fmt.Sprintf("set kvEvents to %q and kvReplay to %q, with the ports of the engine's options",
				"tcp://"+net.JoinHostPort(host, "5557"), "tcp://"+net.JoinHostPort(host, "5558")),
		}, true
	})
}

// checkReplay finds workers whose past events cannot be read again, as far as the engine reports its replay socket.
func checkReplay(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		isUnread := slices.ContainsFunc(w.sockets, func(s socketSeen) bool { return s.err != nil })
		if !w.fromFile || w.kvEvents == "" || w.kvReplay != "" || isUnread {
			return Finding{}, false
		}

		f := Finding{Why: "after a restart of the router, or a gap, its cache state stays stale until its cache was empty once"}
		switch {
		case w.engine.replayOff:
			f.What = "it publishes events and has no replay socket"
			f.Remedy = w.kind.Remedies.Replay
			if !kvsource.Discovered(w.kvEvents) {
				f.Remedy += ", and set the worker's kvReplay"
			}
		case !kvsource.Discovered(w.kvEvents) && len(w.engine.sources) > 0 && w.engine.sources[0].Replay != "":
			f.What = "it has a replay socket, and the worker has no kvReplay"
			f.Remedy = fmt.Sprintf("set its kvReplay to %q", w.engine.sources[0].Replay)
		default:
			return Finding{}, false
		}
		return f, true
	})
}

// checkCapacity compares models[].workers[].blocks with the capacity that llama.cpp reports, because its metrics do not have
// it.
func checkCapacity(o *observation) []Finding {
	return eachRead(o, func(w *workerSeen, m *modelSeen) (Finding, bool) {
		if m == nil || !w.fromFile || w.engine.capacity == 0 {
			return Finding{}, false
		}
		blocks := w.engine.capacity / o.blockSizes(m).Model
		return Finding{
			What: fmt.Sprintf("its slots have room for %d tokens, which are %d blocks, and its blocks is %d",
				w.engine.capacity, blocks, w.blocks),
			Why:    "the router does not know which prompts its cache has lost",
			Remedy: fmt.Sprintf("set its blocks to %d", blocks),
		}, w.blocks != blocks
	})
}

// checkFrontend finds frontends of Dynamo that have not exactly one worker.
func checkFrontend(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		if w.kind.Pages != engines.DynamoPages || w.engine.workers == 1 || w.engine.workers < 0 {
			return Finding{}, false
		}
		if w.engine.workers == 0 {
			return Finding{
				What: "its frontend has no worker for the model",
				Why:  "it answers 404 to every request, although its /health is healthy",
				Remedy: "start the worker, with the same --discovery-backend and the same place of discovery (DYN_FILE_KV, etcd) " +
					"as the frontend",
			}, true
		}
		return Finding{
			What: fmt.Sprintf("its frontend sends requests to %d workers", w.engine.workers),
			Why:  "the router has the cache of one of them, so requests miss the blocks that it promised",
			Remedy: "start a frontend for each worker, and keep the pairs apart by --namespace or by the place of discovery " +
				"(DYN_FILE_KV); then list each frontend as a worker",
		}, true
	})
}
