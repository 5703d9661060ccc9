package doctor

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// The checks of models whose prompts one worker computes and another one decodes. What all engines of a model must have alike is
// found by other checks too: block-size, engine-hashes, events-off and clock.

// prefillsThere is why a fault of a transfer matters.
const prefillsThere = "its prompts are computed by decode workers, as if there were no prefill workers"

// isHalf reports whether the worker serves a half of each request.
func (w *workerSeen) isHalf() bool {
	return w.role == fleet.Prefill.String() || w.role == fleet.Decode.String()
}

// eachHalf runs a check on every prefill or decode worker whose engine answered.
func eachHalf(o *observation, check func(w *workerSeen) (Finding, bool)) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		if !w.isHalf() {
			return Finding{}, false
		}
		return check(w)
	})
}

// checkHalves finds models of which the router has no ready worker of one role.
func checkHalves(o *observation) (found []Finding) {
	type half struct{ model, role string }
	all, ready := map[half]int{}, map[half]int{}
	for _, r := range o.router.fleet.Ranks {
		key := half{r.Model, r.Role}
		all[key]++
		if r.State == fleet.Ready.String() {
			ready[key]++
		}
	}

	for _, m := range o.models {
		for _, role := range []fleet.Role{fleet.Prefill, fleet.Decode} {
			key := half{m.name, role.String()}
			if all[key] == 0 || ready[key] > 0 {
				continue
			}
			why := "decode workers compute all prompts themselves, which delays the answers that they decode"
			if role == fleet.Decode {
				why = "no request of the model can be served"
			}
			found = append(found, Finding{
				Subject: "model " + m.name, What: fmt.Sprintf("of its %s none is ready", count(all[key], role.String()+" rank")), Why: why,
				Remedy: fmt.Sprintf("start an engine with the role %s; /debug/fleet shows why each worker is not ready", role),
			})
		}
	}
	return found
}

// checkConnector finds engines that do not transfer KV caches in the way that their workers are configured with.
func checkConnector(o *observation) []Finding {
	return eachHalf(o, func(w *workerSeen) (Finding, bool) {
		if w.engine.mode != "" {
			return checkMode(w)
		}
		want := cmp.Or(w.transfer, w.kind.Transfer.String())
		if !w.engine.transferSeen || w.engine.transfer.String() == want {
			return Finding{}, false
		}

		what := fmt.Sprintf("its role is %s with transfer %s, and its metrics show no connector", w.role, want)
		if w.engine.transfer != fleet.NoTransfer {
			what = fmt.Sprintf("its role is %s with transfer %s, and its metrics show transfer %s", w.role, want, w.engine.transfer)
		}
		return Finding{What: what, Why: prefillsThere, Remedy: connectorRemedy(want)}, true
	})
}

// connectorRemedy returns the instructions to start a vLLM with a transfer.
func connectorRemedy(transfer string) string {
	if transfer == fleet.TransferP2P.String() {
		return `give it a tier of type p2p in --kv-transfer-config '{"kv_connector": "OffloadingConnector", …}', or correct its transfer`
	}
	return `start it with --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}', or correct its transfer`
}

// checkMode compares the role of a worker with its SGLang's.
func checkMode(w *workerSeen) (Finding, bool) {
	mode := w.engine.mode
	return Finding{
		What:   fmt.Sprintf("its role is %s, and its --disaggregation-mode is %s", w.role, mode),
		Why:    "its engine takes part in no transfer, so requests that are split fail or wait",
		Remedy: fmt.Sprintf("start it with --disaggregation-mode %s, or give the worker the role of its mode", w.role),
	}, mode != w.role
}

// checkTransferPath finds vLLMs of one model that were started with different texts for its path. NixlConnector hashes the text.
func checkTransferPath(o *observation) []Finding {
	return firstDifferent(o, func(w *workerSeen) string {
		nixl := fleet.TransferNixl.String()
		if !w.kind.Connectors || cmp.Or(w.transfer, nixl) != nixl || len(w.engine.served) == 0 {
			return ""
		}
		return w.engine.served[0].Root
	}, func(mine, theirs, other string) Finding {
		return Finding{
			What:   fmt.Sprintf("it was started with the model path %q, and worker %s with %q", mine, other, theirs),
			Why:    "NixlConnector refuses to transfer between engines whose paths differ: the text is part of what they compare",
			Remedy: "start both with the same text, such as by mounting the model at one path everywhere",
		}
	})
}

// checkTransferVersion finds engines of one model with different versions.
func checkTransferVersion(o *observation) []Finding {
	return firstDifferent(o, func(w *workerSeen) string { return w.engine.version }, func(mine, theirs, other string) Finding {
		return Finding{
			What:   fmt.Sprintf("its engine has version %q, and that of worker %s has %q", mine, other, theirs),
			Why:    "engines of different versions refuse to transfer KV caches, or read them wrongly",
			Remedy: "run one version on all prefill and decode workers of the model",
		}
	})
}

// firstDifferent compares a property of each prefill and decode worker with the same property of the first worker of the other
// role in the same model. Workers whose property is empty, because it is not known, are left out.
func firstDifferent(o *observation, of func(w *workerSeen) string, report func(mine, theirs, other string) Finding) (found []Finding) {
	first := map[[2]string]*workerSeen{} // by model and role
	for i := range o.workers {
		w := &o.workers[i]
		key := [2]string{w.model, w.role}
		if w.engine.err == nil && w.isHalf() && first[key] == nil && of(w) != "" {
			first[key] = w
		}
	}

	return eachHalf(o, func(w *workerSeen) (Finding, bool) {
		// The workers of one role alone need not be alike. Decode workers are compared with the first prefill worker, and prefill
		// workers with the first decode worker if that is like the first of their own.
		prefill, decode := first[[2]string{w.model, fleet.Prefill.String()}], first[[2]string{w.model, fleet.Decode.String()}]
		if prefill == nil || decode == nil || of(w) == "" {
			return Finding{}, false
		}
		if w.role == fleet.Decode.String() && of(w) != of(prefill) {
			return report(of(w), of(prefill), prefill.name), true
		}
		differs := of(w) != of(decode) && of(w) != of(prefill)
		return report(of(w), of(decode), decode.name), w.role == fleet.Prefill.String() && differs
	})
}

// checkTransferAddress finds addresses of transfers that cannot be connected to.
func checkTransferAddress(o *observation) []Finding {
	return eachAnswering(o, func(w *workerSeen, _ *modelSeen) (Finding, bool) {
		if w.transferErr == nil {
			return Finding{}, false
		}
		what := "vLLM's p2p tier listens there, if its host is one that others reach: compare the host and port of the tier, or " +
			"VLLM_P2P_SIDE_CHANNEL_HOST and VLLM_P2P_SIDE_CHANNEL_PORT, with transferAddress"
		if w.transfer == fleet.TransferBootstrap.String() {
			what = "SGLang's bootstrap server listens there: compare --host and --disaggregation-bootstrap-port with transferAddress"
		}
		return Finding{
			What: fmt.Sprintf("the address of its transfers, %s, cannot be connected to: %s", w.transferAt,
				strings.TrimSpace(w.transferErr.Error())),
			Why: "decode workers cannot fetch KV caches from it, and requests fail or wait", Remedy: what,
		}, true
	})
}
