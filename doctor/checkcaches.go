package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// The checks of clocks, hit rates and hashes.

// clockBound is the greatest difference that clocks may have. Restarts are detected by timestamps,
// and an engine needs longer than this to restart.
const clockBound = 2 * time.Second

func checkClock(o *observation) []Finding {
	var found []Finding
	if f, wrong := clockFinding("router", o.router.clockAhead); wrong {
		found = append(found, f)
	}

	for _, w := range o.workers {
		ahead := w.engine.clockAhead
		for _, s := range w.sockets {
			// A message from the past may have waited in a replay buffer; one from the future proves a
			// clock that is ahead.
			if d := s.sentAt.Sub(s.receivedAt); !s.sentAt.IsZero() && d > ahead {
				ahead = d
			}
		}
		if f, wrong := clockFinding("worker "+w.name, ahead); wrong {
			found = append(found, f)
		}
	}
	return found
}

func clockFinding(subject string, ahead time.Duration) (Finding, bool) {
	if ahead.Abs() < clockBound {
		return Finding{}, false
	}

	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	return Finding{
		Subject: subject, What: fmt.Sprintf("its clock is %s %s the clock of this machine", ahead.Abs().Round(time.Second), direction),
		Why:    "restarts of engines are detected by timestamps, and lifetimes are measured by them",
		Remedy: "run a time service (chrony, systemd-timesyncd) on both machines",
	}, true
}

const (
	// enoughTokens is the least number of prompt tokens behind a hit rate.
	enoughTokens = 20_000
	// maxRateDifference is the greatest difference that two hit rates may have, as a share of prompt tokens.
	maxRateDifference = 0.25
)

// checkHitRate compares the hit rate that the router predicted with the engines' hit rate.
func checkHitRate(o *observation) []Finding {
	promptTokens := o.router.metricsNow.Sum("stator_route_prompt_tokens_total")
	cachedTokens := o.router.metricsNow.Sum("stator_route_cached_tokens_total")
	var queries, hits float64
	for _, w := range o.workers {
		queries += w.engine.queries
		hits += w.engine.hits
	}
	if promptTokens < enoughTokens || queries < enoughTokens {
		return nil
	}

	predicted := cachedTokens / promptTokens
	found := hits / queries
	if d := predicted - found; d > -maxRateDifference && d < maxRateDifference {
		return nil
	}

	why := "requests are sent to workers whose cache does not have their prompts"
	if predicted < found {
		why = "cached prompts are found by chance and could be found by routing"
	}
	return []Finding{{
		Subject: "router",
		What:    fmt.Sprintf("it predicted %.0f %% of prompt tokens as cached, and the engines found %.0f %%", 100*predicted, 100*found),
		Why:     why,
		Remedy: "correct the other findings first (block size, tokenizer, events); if there are none, an engine's events and its cache " +
			"disagree: restart that engine",
	}}
}

// checkAsleep names engines that report to sleep. They answer at their health pages.
func checkAsleep(o *observation) (found []Finding) {
	for _, r := range o.router.fleet.Ranks {
		if r.Asleep && r.Rank == 0 {
			found = append(found, Finding{
				Subject: "worker " + r.Worker, What: "its engine sleeps", Note: true,
				Why:    "it gets requests only if no other worker can take them, and these wait until it wakes; its cache is empty",
				Remedy: "wake it with POST /wake_up, or drain the worker with stator drain until then",
			})
		}
	}
	return found
}

// leastBroken is the least share of prompt tokens that a finding about a text in prompts is worth.
const leastBroken = 0.02

const secondsPerDay = 24 * 60 * 60

// checkPrefixBreaker names the places at which prompts differ although they go on alike. What stands there is not known, only its kind.
func checkPrefixBreaker(o *observation) (found []Finding) {
	for _, s := range o.router.metricsNow {
		if s.Name != "stator_route_prefix_breaker_ratio" || s.Value < leastBroken {
			continue
		}
		l := s.Labels
		rate := o.router.metricsNow.Sum("stator_route_prefix_breaker_tokens_per_second", "model", l["model"], "message", l["message"],
			"role", l["role"], "character", l["character"], "token", l["token"], "kind", l["kind"])
		where := fmt.Sprintf("message %s (%s)", l["message"], l["role"])
		remedy := "have the client leave the text out, or put it at the end of the prompt; Claude Code leaves out its billing header " +
			"with CLAUDE_CODE_ATTRIBUTION_HEADER=0"
		switch l["role"] {
		case "prompt":
			where = "the prompt"
		case "template":
			where = "the chat template or a tool"
			remedy = "have the client leave the text out of its tools, or give the chat template a fixed date in chat_template_kwargs"
		}
		what, known := breakerKinds[l["kind"]]
		if !known {
			what = "a text"
		}
		found = append(found, Finding{
			Subject: "model " + l["model"],
			What: fmt.Sprintf("%s at character %s of %s differs from prompt to prompt, at about token %s, and the equal text behind it is "+
				"computed again: %.0f tokens a day, %.0f %% of all prompt tokens",
				what, l["character"], where, l["token"], rate*secondsPerDay, 100*s.Value),
			Why:    "an engine finds in its cache only what comes before the first difference",
			Remedy: remedy,
		})
	}
	return found
}

// breakerKinds are the kinds of texts that the router can name.
var breakerKinds = map[string]string{
	"date": "a date", "time": "a time", "uuid": "a UUID", "hash": "an identifier", "number": "a number", "other": "a text",
}

// maxResyncs is the number of resyncs for drift that is normal.
const maxResyncs = 1

// checkDrift reads the router's own comparison of predicted and reported cache hits.
func checkDrift(o *observation) (found []Finding) {
	for _, w := range o.workers {
		ratio := o.router.metricsNow.Sum("stator_feed_drift_ratio", "worker", w.name)
		resyncs := o.router.metricsNow.Sum("stator_feed_drift_resyncs_total", "worker", w.name)

		f := Finding{Subject: "worker " + w.name}
		switch {
		case ratio <= -maxRateDifference:
			f.What = fmt.Sprintf("%.0f %% of its prompt tokens were cached and not predicted as cached", -100*ratio)
			f.Why = "its cache is hit by chance and could be hit by routing"
			f.Remedy = "check that its events are complete and that the model folder is the engine's; clients that use the engine " +
				"directly have the same effect"
		case ratio >= maxRateDifference:
			f.What = fmt.Sprintf("%.0f %% of its prompt tokens were predicted as cached and were not", 100*ratio)
			f.Why = "requests are sent there for cached blocks that it does not have"
		case resyncs > maxResyncs:
			f.What = fmt.Sprintf("its cache state was wrong and was rebuilt %.0f times", resyncs)
			f.Why = "requests are sent there for cached blocks that it does not have"
		default:
			continue
		}
		if f.Remedy == "" {
			f.Remedy = "check whether another process answers at its event socket, whether a second router or agent uses its name, " +
				"and whether its cache was reset; otherwise restart the engine"
		}
		found = append(found, f)
	}
	return found
}

const (
	hashesWhy    = "routing is not affected; blocks in shared tiers, and blocks transferred between engines, are not found"
	hashesRemedy = "give all engines of the model one --prefix-caching-hash-algo (sha256; xxhash is seeded at random), one " +
		"PYTHONHASHSEED " +
		"and the same version"
)

// checkEngineHashes compares the hashes of the engines of a model: the same first block should have the
// same hash on all of them. Simulated engines draw a seed each on purpose and are left out.
func checkEngineHashes(o *observation) []Finding {
	found := checkHashAlgorithms(o)
	if len(found) > 0 {
		return found
	}

	for _, m := range o.models {
		first := map[root]rootHash{}
		for _, w := range o.workers {
			if w.model != m.name {
				continue
			}
			other := compareRoots(first, &w)
			if other != "" && !w.kind.OwnHashes {
				found = append(found, Finding{
					Subject: "worker " + w.name,
					What:    fmt.Sprintf("its hash of the same block differs from that of %s (%s)", other, hashAlgosOf(o, w.name, other)),
					Why:     hashesWhy, Remedy: hashesRemedy,
				})
			}
		}
	}
	return found
}

// rootHash is the hash of a first block, and the worker that was seen with it first.
type rootHash struct {
	worker string
	hash   kvevent.EngineHash
}

// compareRoots adds a worker's first blocks to the first blocks of the workers before it. It returns a
// worker with another hash for one of them, or "".
func compareRoots(first map[root]rootHash, w *workerSeen) (other string) {
	for _, s := range w.sockets {
		for r, hash := range s.roots {
			was, seen := first[r]
			if !seen {
				first[r] = rootHash{w.name, hash}
			} else if was.hash != hash && was.worker != w.name {
				other = was.worker
			}
		}
	}
	return other
}

// checkHashAlgorithms finds engines whose reported algorithm makes their hashes differ from the
// hashes of others.
func checkHashAlgorithms(o *observation) (found []Finding) {
	for _, m := range o.models {
		algorithms := map[string]bool{}
		for _, w := range o.workers {
			algo := w.engine.hashAlgo
			if w.model != m.name || algo == "" || w.kind.OwnHashes {
				continue
			}
			isNew := !algorithms[algo] && len(algorithms) > 0
			isSeeded := algorithms[algo] && strings.HasPrefix(algo, "xxhash")
			if isNew || isSeeded {
				found = append(found, Finding{
					Subject: "worker " + w.name,
					What:    fmt.Sprintf("it hashes by %s, and other engines of model %s use another algorithm or seed", algo, m.name),
					Why:     hashesWhy, Remedy: hashesRemedy,
				})
			}
			algorithms[algo] = true
		}
	}
	return found
}

// hashAlgosOf lists the hash algorithms that the named workers report.
func hashAlgosOf(o *observation, names ...string) string {
	var all []string
	for _, w := range o.workers {
		if slices.Contains(names, w.name) && w.engine.hashAlgo != "" && !slices.Contains(all, w.engine.hashAlgo) {
			all = append(all, w.engine.hashAlgo)
		}
	}
	if len(all) == 0 {
		return "they report no algorithm"
	}
	return "by " + strings.Join(all, " and ")
}
