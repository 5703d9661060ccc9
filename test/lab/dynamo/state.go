package dynamo

// State is a planner's memory of one fleet. It is a value: its functions return the next one. Create it with [Config.NewState].
type State struct {
	// Series are the predictions' histories.
	Series Series
	// Prefill, Decode and Mixed are the regressions of passes. A fleet uses the regressions of its mode.
	Prefill, Decode, Mixed Regression
	// LowerBound is the last result of throughput scaling, which load scaling obeys.
	LowerBound Replicas
}

// NewState returns the state of a fleet without traffic. A profile is optional: its points are the first samples of the regressions.
func (c *Config) NewState(profile *Profile) (State, error) {
	series, err := c.NewSeries()
	if err != nil {
		return State{}, err
	}
	s := State{
		Series:  series,
		Prefill: NewRegression(PrefillPass, c.Samples),
		Decode:  NewRegression(DecodePass, c.Samples),
		Mixed:   NewRegression(MixedPass, c.Samples),
	}
	if profile == nil {
		return s, nil
	}
	if err := profile.Validate(); err != nil {
		return State{}, err
	}

	prefill, decode := profile.Samples()
	for _, p := range prefill {
		s.Prefill = s.Prefill.Add(p)
		s.Mixed = s.Mixed.Add(p)
	}
	for _, p := range decode {
		s.Decode = s.Decode.Add(p)
		s.Mixed = s.Mixed.Add(p)
	}
	return s, nil
}

// passes returns the models of the regressions. Models that are not ready are nil.
func (c *Config) passes(s State) Passes {
	pass := func(r Regression) Pass {
		fit, ok := r.Fit()
		if c.Release {
			fit, ok = r.Plain()
		}
		if !ok {
			return nil
		}
		return fit.Pass
	}
	return Passes{Prefill: pass(s.Prefill), Decode: pass(s.Decode), Mixed: pass(s.Mixed)}
}

// NextThroughput decides on the predicted traffic, once in an Interval. The state before has the last window already.
func (c *Config) NextThroughput(s State, now Replicas) (Decision, State) {
	d := c.Throughput(now, c.Traffic(s.Series), c.passes(s))
	if d.Reason == ReasonLowerBound {
		s.LowerBound = d.Replicas
	}
	return d, s
}

// NextLoad decides on the engines' load, once in a LoadInterval.
func (c *Config) NextLoad(s State, now Replicas, prefill, decode []Engine, scalingInProgress bool) Decision {
	return c.LoadScaling(LoadInput{
		Now: now, Prefill: prefill, Decode: decode, PrefillModel: s.Prefill, DecodeModel: s.Decode, MixedModel: s.Mixed,
		HitRate: s.Series.HitRate, AcceptLength: s.Series.AcceptTokens, ScalingInProgress: scalingInProgress, LowerBound: s.LowerBound,
	})
}
