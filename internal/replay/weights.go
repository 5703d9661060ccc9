package replay

import (
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/route/cost"
)

// costFlags is the cost function that the flags choose, and its weights.
type costFlags struct {
	name   string
	delay  *cost.Delay
	dynamo *cost.Weights
}

// The help of each weight begins with the function that has it.
const (
	ofDelay  = "delay: "
	ofDynamo = "dynamo: "
)

// addFlags adds the choice of the function and the weights of both functions.
func (c *costFlags) addFlags(f *flag.FlagSet) {
	c.delay = cost.Default()
	c.dynamo = cost.Dynamo()
	f.StringVar(&c.name, "cost", cost.NameDelay, "cost function of the kv policy: delay or dynamo")
	weight := func(v *float64, name, of, usage string) { f.Var(&weightFlag{v: v}, name, of+usage) }

	weight(&c.delay.FirstToken, "delay-first-token", ofDelay, "how often a delay of the first token counts")
	weight(&c.delay.Interference, "delay-interference", ofDelay, "share of a prefill by which each request on the rank is delayed")
	weight(&c.delay.Evict, "delay-evict", ofDelay, "worth of evicted tokens, relative to the mean token")
	weight(&c.delay.Decode, "delay-decode", ofDelay, "part of an answer for which a difference of load lasts")

	weight(&c.dynamo.PrefillLoadScale, "prefill-load-scale", ofDynamo, "blocks of decode that a block of prefill weighs")
	weight(&c.dynamo.Overlap, "overlap-score-credit", ofDynamo, "blocks of prefill that a cached block saves")
	weight(&c.dynamo.OverlapDecay, "overlap-decay", ofDynamo, "how fast that credit shrinks with the prefill booked before")
	weight(&c.dynamo.Decode, "decode-weight", ofDynamo, "weight of an occupied block")
	weight(&c.dynamo.Requests, "request-weight", ofDynamo, "weight of a running request, in blocks")
}

// weightFlag is a weight. Its default belongs to the cost function, so help does not show it.
type weightFlag struct {
	v   *float64
	set bool
}

// String returns the weight, or "" if it was not given.
func (w *weightFlag) String() string {
	if !w.set {
		return ""
	}
	return strconv.FormatFloat(*w.v, 'g', -1, 64)
}

// Set parses a weight.
func (w *weightFlag) Set(text string) (err error) {
	w.set = true
	*w.v, err = strconv.ParseFloat(text, 64)
	return err
}

// function returns the chosen function. Weights of the other one are refused, because they have no effect.
func (c *costFlags) function(f *flag.FlagSet) (cost.Function, error) {
	switch c.name {
	case cost.NameDynamo:
		return c.dynamo, refuseWeights(f, ofDelay, c.name)
	case cost.NameDelay:
		return c.delay, refuseWeights(f, ofDynamo, c.name)
	}
	return nil, fmt.Errorf("--cost is %q: use delay or dynamo", c.name)
}

// refuseWeights reports given weights of a function that was not chosen.
func refuseWeights(f *flag.FlagSet, of, chosen string) error {
	var words []string
	f.Visit(func(o *flag.Flag) {
		if strings.HasPrefix(o.Usage, of) {
			words = append(words, "--"+o.Name)
		}
	})
	if len(words) == 0 {
		return nil
	}
	return fmt.Errorf("%s: these weights are of --cost %s and have no effect with --cost %s",
		strings.Join(words, ", "), strings.TrimSuffix(of, ": "), chosen)
}
