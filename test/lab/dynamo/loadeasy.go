package dynamo

import "fmt"

// thresholds are the limits of an easy target: a worker more if any engine is above up, and one less if all are below down.
// The inclusive flags are for limits that count themselves.
type thresholds struct {
	up, down                   float64
	upInclusive, downInclusive bool
}

// prefillThresholds returns the thresholds of queued prompts: as shares of the model's context, or in tokens for the target
// load.
func (c *Config) prefillThresholds() (t thresholds, scale float64) {
	switch c.Target {
	case TargetLatency:
		return thresholds{0.1, 0, true, true}, float64(c.Context)
	case TargetLoad:
		return thresholds{float64(c.Thresholds.QueueUp), float64(c.Thresholds.QueueDown), true, true}, 1
	}
	return thresholds{1, 0.1, true, false}, float64(c.Context)
}

// decodeThresholds returns the thresholds of the KV cache, as shares of it.
func (c *Config) decodeThresholds() thresholds {
	switch c.Target {
	case TargetLatency:
		return thresholds{0.4, 0.1, false, false}
	case TargetLoad:
		return thresholds{c.Thresholds.KVUp / 100, c.Thresholds.KVDown / 100, true, true}
	}
	return thresholds{1, 0.6, false, false}
}

// easyPrefill decides on prefill workers by their queues.
func (c *Config) easyPrefill(in LoadInput) side {
	t, scale := c.prefillThresholds()
	if scale <= 0 || in.Now.Prefill == 0 || c.Target == TargetLoad && t.up <= 0 {
		return stop(in.Now.Prefill, ReasonInsufficient)
	}
	values := make([]float64, 0, len(in.Prefill))
	for _, e := range in.Prefill {
		values = append(values, e.QueuedPrompt/scale)
	}
	return t.judge(in.Now.Prefill, c.least().Prefill, values, "queue")
}

// easyDecode decides on decode workers, or aggregated ones, by their caches.
func (c *Config) easyDecode(in LoadInput) side {
	t := c.decodeThresholds()
	if c.Limits.MaxKVTokens <= 0 || in.Now.Decode == 0 || c.Target == TargetLoad && t.up <= 0 {
		return stop(in.Now.Decode, ReasonInsufficient)
	}
	values := make([]float64, 0, len(in.Decode))
	for _, e := range in.Decode {
		tokens := e.DecodeContext + e.QueuedDecode
		if c.Mode == ModeAggregated {
			tokens += e.QueuedPrompt
		}
		values = append(values, tokens/float64(c.Limits.MaxKVTokens))
	}
	return t.judge(in.Now.Decode, c.least().Decode, values, "KV cache")
}

// judge compares the engines' values with the thresholds.
func (t thresholds) judge(now, least int, values []float64, name string) side {
	s := stop(now, ReasonNoChange)
	if len(values) == 0 {
		s.reason = ReasonInsufficient
		return s
	}
	lowest, highest := values[0], values[0]
	for _, v := range values {
		lowest, highest = min(lowest, v), max(highest, v)
	}
	s.detail = fmt.Sprintf("%s of %d engines is %.3g to %.3g, up at %.3g and down at %.3g; ", name, len(values), lowest, highest,
		t.up, t.down)

	switch {
	case highest > t.up, t.upInclusive && highest == t.up:
		s = s.to(now+1, ReasonUp)
	case now > 1 && (highest < t.down || t.downInclusive && highest == t.down):
		s = s.to(max(now-1, least), ReasonDown)
	}
	return s
}
