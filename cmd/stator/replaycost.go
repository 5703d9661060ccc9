package main

import (
	"flag"
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/route/cost"
)

// replayCost is a cost function as flags choose it.
type replayCost struct {
	name   string
	dynamo *cost.Weights
}

// The flags that weigh Dynamo's function, by its own names for them.
var dynamoFlags = []string{"prefill-load-scale", "overlap-score-credit", "overlap-decay", "decode-weight", "request-weight"}

func (c *replayCost) addFlags(f *flag.FlagSet) {
	c.dynamo = cost.Dynamo()
	f.StringVar(&c.name, "cost", "default", "cost function of the kv policy: default or dynamo")
	f.Float64Var(&c.dynamo.PrefillScale, "prefill-load-scale", c.dynamo.PrefillScale, "dynamo: blocks of decode that a block of prefill weighs")
	f.Float64Var(&c.dynamo.Overlap, "overlap-score-credit", c.dynamo.Overlap, "dynamo: blocks of prefill that a cached block saves")
	f.Float64Var(&c.dynamo.OverlapDecay, "overlap-decay", c.dynamo.OverlapDecay, "dynamo: how fast that shrinks with the prefill that is booked before")
	f.Float64Var(&c.dynamo.Decode, "decode-weight", c.dynamo.Decode, "dynamo: what an occupied block weighs")
	f.Float64Var(&c.dynamo.Requests, "request-weight", c.dynamo.Requests, "dynamo: what a running request weighs, in blocks")
}

// function is the function that was chosen.
func (c *replayCost) function(f *flag.FlagSet) (cost.Function, error) {
	switch c.name {
	case cost.NameDynamo:
		return c.dynamo, nil
	case "default", cost.NameDelay:
	default:
		return nil, fmt.Errorf("--cost is %q: use default or dynamo", c.name)
	}
	var weighed []string
	f.Visit(func(o *flag.Flag) {
		for _, name := range dynamoFlags {
			if o.Name == name {
				weighed = append(weighed, "--"+name)
			}
		}
	})
	if len(weighed) > 0 {
		return nil, fmt.Errorf("%s: these weigh Dynamo's function; add --cost dynamo", strings.Join(weighed, ", "))
	}
	return cost.Default(), nil
}
