package dynamo

// estimates computes the latencies of engines with a regression's model.
type estimates struct {
	fit         Fit
	mean        Sample // of the samples: the values of a typical pass
	limits      Limits
	hit, accept float64
	// release is the configuration's release, and length the mean context of a decoding request in the samples.
	release bool
	length  float64
}

// estimate returns the model of a regression; false if it is not ready.
func (c *Config) estimate(r Regression, in LoadInput) (estimates, bool) {
	fit, ok := r.Fit()
	if c.Release {
		fit, ok = r.Plain()
	}
	if !ok {
		return estimates{}, false
	}

	e := estimates{fit: fit, limits: c.Limits, release: c.Release, length: r.meanLength()}
	asked := Asked{HitRate: in.HitRate, AcceptLength: in.AcceptLength}
	e.hit, e.accept = asked.hit(), asked.accept()
	a, b := r.Mean()
	switch r.kind {
	case DecodePass:
		e.mean.Requests = a
	default:
		e.mean.PromptTokens = a
	}
	e.mean.ContextTokens = b
	return e, true
}

// TTFT returns the milliseconds until a typical prompt is computed behind as many queued tokens, beside decoding with as many tokens
// in the cache.
func (e estimates) TTFT(queued, context float64) (float64, bool) {
	return e.limits.Chunked(e.fit.Pass, float64(int((queued+e.mean.PromptTokens)*(1-e.hit))), 0, context)
}

// ITL returns the milliseconds between the tokens of an answer in a batch of requests with as many tokens in the cache. A batch of
// unknown size has the samples' mean. Release 1.6.1 always takes that, and one typical request more.
func (e estimates) ITL(requests, context float64) float64 {
	s := e.mean
	s.ContextTokens = context
	switch {
	case e.fit.Kind != DecodePass:
	case e.release:
		s.Requests++
		s.ContextTokens += e.length
	case requests > 0 || context <= 0:
		s.Requests = requests
	}
	return e.fit.Pass(s) / e.accept
}

// EstimateTTFT returns the milliseconds until a typical prompt of a regression's samples is computed behind queued prompt tokens;
// false if the regression is not ready.
func (c *Config) EstimateTTFT(r Regression, queued, hitRate float64) (float64, bool) {
	e, ok := c.estimate(r, LoadInput{HitRate: hitRate})
	if !ok {
		return 0, false
	}
	return e.TTFT(queued, 0)
}

// EstimateITL returns the milliseconds between tokens for typical passes of a regression's samples with as many tokens in the
// cache; false if the regression is not ready.
func (c *Config) EstimateITL(r Regression, context, accept float64) (float64, bool) {
	e, ok := c.estimate(r, LoadInput{AcceptLength: accept})
	if !ok {
		return 0, false
	}
	return e.ITL(0, context), true
}

// consolidated returns how much more load one of the others has when one of n workers is gone.
func consolidated(n int) float64 {
	if n <= 1 {
		return 1
	}
	return float64(n) / float64(n-1)
}

// prefillSide decides on prefill workers.
func (c *Config) prefillSide(in LoadInput) side {
	if c.Target != TargetSLA {
		return c.easyPrefill(in)
	}
	e, ok := c.estimate(in.PrefillModel, in)
	if !ok || in.Now.Prefill == 0 {
		return stop(in.Now.Prefill, ReasonInsufficient)
	}
	return c.byTTFT(e, in.Prefill, in.Now.Prefill, c.least().Prefill, false)
}

// byTTFT decides by time to first token. The share of it that a prompt needs for itself does not depend on the number of workers, so
// the sensitivity applies to the rest. An aggregated engine computes prompts beside its decoding.
func (c *Config) byTTFT(e estimates, engines []Engine, now, least int, aggregated bool) side {
	more, bound := consolidated(now), milliseconds(c.TTFT)
	safe, refused := now > 1, false
	var list []float64
	for _, engine := range engines {
		context := 0.0
		if aggregated {
			context = engine.DecodeContext
		}
		ttft, ok := e.TTFT(engine.QueuedPrompt, context)
		if ok {
			list = append(list, ttft)
		}

		// The survivors of a removal have more in their queues and caches.
		after := float64(int(context * more))
		own, ok := e.TTFT(0, after)
		queued, ok2 := e.TTFT(float64(int(engine.QueuedPrompt*more)), after)
		budget := (bound - own) * float64(c.Sensitivity) / 100
		switch {
		case !safe:
		case !ok || !ok2:
			safe = false
		case budget <= 0 || queued-own >= budget:
			safe, refused = false, true
		}
	}
	return c.judged(now, least, list, bound, safe, refused, "TTFT")
}

// decodeSide decides on decode workers.
func (c *Config) decodeSide(in LoadInput) side {
	if c.Target != TargetSLA {
		return c.easyDecode(in)
	}
	e, ok := c.estimate(in.DecodeModel, in)
	if !ok || in.Now.Decode == 0 {
		return stop(in.Now.Decode, ReasonInsufficient)
	}
	return c.byITL(e, in.Decode, in.Now.Decode, c.least().Decode, false)
}

// byITL decides by time between tokens. A worker may go if the others' caches still have room and their latency is within the
// sensitivity. In aggregated engines, the queued prompts will be in the caches, too.
func (c *Config) byITL(e estimates, engines []Engine, now, least int, aggregated bool) side {
	more, bound := consolidated(now), milliseconds(c.ITL)
	safe, refused := now > 1, false
	var list []float64
	for _, engine := range engines {
		context := engine.DecodeContext + engine.QueuedDecode
		list = append(list, e.ITL(engine.DecodeRequests, context))
		if aggregated {
			context += engine.QueuedPrompt
		}
		after := float64(int(context * more))
		full := c.Limits.MaxKVTokens > 0 && after >= float64(c.Limits.MaxKVTokens)
		if safe && (full || e.ITL(engine.DecodeRequests*more, after) >= bound*float64(c.Sensitivity)/100) {
			safe, refused = false, true
		}
	}
	return c.judged(now, least, list, bound, safe, refused, "ITL")
}

// aggregatedSide decides on aggregated workers: one more if either latency wants that, one less if both do.
func (c *Config) aggregatedSide(in LoadInput) side {
	if c.Target != TargetSLA {
		return c.easyDecode(in)
	}
	now := in.Now.Decode
	e, ok := c.estimate(in.MixedModel, in)
	if !ok || now == 0 {
		return stop(now, ReasonInsufficient)
	}
	ttft := c.byTTFT(e, in.Decode, now, c.least().Decode, true)
	itl := c.byITL(e, in.Decode, now, c.least().Decode, true)

	s := stop(now, ReasonNoChange)
	s.detail = ttft.detail + itl.detail
	switch {
	case ttft.want > now || itl.want > now:
		s = s.to(now+1, ReasonUp)
	case ttft.want < now && itl.want < now:
		s = s.to(max(ttft.want, itl.want), ReasonDown)
	case ttft.reason == ReasonInsufficient && itl.want < now:
		s = s.to(itl.want, ReasonDown)
	case ttft.reason == ReasonRefused || itl.reason == ReasonRefused:
		s.reason = ReasonRefused
	}
	return s
}
