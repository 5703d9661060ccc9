package main

import (
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/route/cost"
)

// replayCost is a cost function as flags choose it and weigh it.
type replayCost struct {
	name   string
	delay  *cost.Delay
	dynamo *cost.Weights
}

// Weights belong to one function or the other, and their flags begin their help with its name.
const (
	ofDelay  = "default cost: "
	ofDynamo = "dynamo's cost: "
)

func (c *replayCost) addFlags(f *flag.FlagSet) {
	c.delay, c.dynamo = cost.Default(), cost.Dynamo()
	f.StringVar(&c.name, "cost", "default", "cost function of the kv policy: default or dynamo")
	weight := func(v *float64, name, of, usage string) { f.Var(&weightFlag{v: v}, name, of+usage) }
	weight(&c.delay.PrefillWeight, "delay-work", ofDelay, "how often the time of a request's own prefill counts")
	weight(&c.delay.Interference, "delay-neighbour", ofDelay, "how much more it counts for each request that is there")
	weight(&c.delay.Decode, "delay-decode", ofDelay, "what a token weighs that is occupied, against one to compute")
	weight(&c.delay.Untracked, "delay-foreign", ofDelay, "tokens to compute that a request of others stands for")
	weight(&c.dynamo.PrefillLoadScale, "prefill-load-scale", ofDynamo, "blocks of decode that a block of prefill weighs")
	weight(&c.dynamo.Overlap, "overlap-score-credit", ofDynamo, "blocks of prefill that a cached block saves")
	weight(&c.dynamo.OverlapDecay, "overlap-decay", ofDynamo, "how fast that shrinks with the prefill that is booked before")
	weight(&c.dynamo.Decode, "decode-weight", ofDynamo, "what an occupied block weighs")
	weight(&c.dynamo.Requests, "request-weight", ofDynamo, "what a running request weighs, in blocks")
}

// weightFlag is a weight. Its default is the function's own business: flags do not repeat it.
type weightFlag struct {
	v   *float64
	set bool
}

// String is the weight that was set.
func (w *weightFlag) String() string {
	if !w.set {
		return ""
	}
	return strconv.FormatFloat(*w.v, 'g', -1, 64)
}

// Set takes a weight.
func (w *weightFlag) Set(text string) (err error) {
	w.set = true
	*w.v, err = strconv.ParseFloat(text, 64)
	return err
}

// function is the function that was chosen. A weight of another is refused: it would do nothing.
func (c *replayCost) function(f *flag.FlagSet) (cost.Function, error) {
	switch c.name {
	case cost.NameDynamo:
		return c.dynamo, idle(f, ofDelay, c.name)
	case "default", cost.NameDelay:
		return c.delay, idle(f, ofDynamo, c.name)
	}
	return nil, fmt.Errorf("--cost is %q: use default or dynamo", c.name)
}

// idle refuses flags of a function that was not chosen.
func idle(f *flag.FlagSet, of, chosen string) error {
	var words []string
	f.Visit(func(o *flag.Flag) {
		if strings.HasPrefix(o.Usage, of) {
			words = append(words, "--"+o.Name)
		}
	})
	if len(words) == 0 {
		return nil
	}
	return fmt.Errorf("%s: of %sthis does nothing with --cost %s", strings.Join(words, ", "), strings.Replace(of, ":", ",", 1), chosen)
}
