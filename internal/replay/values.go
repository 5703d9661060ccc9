package replay

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/sim/engine"
)

// parseTiming returns the model of timing of that name. openDir opens the folder of a profile.
func parseTiming(text string, openDir func(path string) fs.FS) (perfmodel.Timing, error) {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "polynomial":
		if rest == "" {
			return perfmodel.Polynomial{}, nil
		}
	case "fixed":
		a, b, _ := strings.Cut(rest, ",")
		prefill, err := time.ParseDuration(a)
		decode, err2 := time.ParseDuration(b)
		if err != nil || err2 != nil || prefill < 0 || decode < 0 || prefill+decode == 0 {
			return nil, fmt.Errorf("%q: write it like fixed:40ms,8ms", text)
		}
		return perfmodel.Fixed{PrefillTime: prefill, DecodeTime: decode}, nil
	case "profile":
		if rest != "" {
			return perfmodel.LoadProfile(openDir(rest))
		}
	}
	return nil, fmt.Errorf("%q is unknown: use polynomial, fixed:PREFILL,DECODE or profile:DIR", text)
}

// restarts is the flag --restart.
type restarts []sim.Restart

// String returns the restarts in the form that Set accepts.
func (r *restarts) String() string {
	var words []string
	for _, x := range *r {
		words = append(words, fmt.Sprintf("%d@%v+%v", x.Worker, x.At, x.After))
	}
	return strings.Join(words, " ")
}

// Set adds one restart, or several that are separated by spaces.
func (r *restarts) Set(text string) error { return forEachWord(text, r.addRestart) }

func (r *restarts) addRestart(text string) error {
	worker, times, ok := strings.Cut(text, "@")
	at, after, ok2 := strings.Cut(times, "+")
	n, err := strconv.Atoi(worker)
	from, err2 := time.ParseDuration(at)
	span, err3 := time.ParseDuration(after)
	if !ok || !ok2 || err != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("write it like 2@10m+30s: worker 2 dies after 10 minutes and is back 30 seconds later")
	}
	*r = append(*r, sim.Restart{Worker: n, At: from, After: span})
	return nil
}

// tiers is the flag --tier.
type tiers []engine.Tier

// String returns the tiers in the form that Set accepts.
func (t *tiers) String() string {
	var words []string
	for _, x := range *t {
		words = append(words, fmt.Sprintf("%v=%d,%v,%v,%v", x.Tier, x.Blocks, x.Read, x.Write, x.Latency))
	}
	return strings.Join(words, " ")
}

// Set adds one tier, or several that are separated by spaces.
func (t *tiers) Set(text string) error { return forEachWord(text, t.addTier) }

func (t *tiers) addTier(text string) error {
	const form = "write it like host=20000,60us,60us,1ms: a tier (host, disk or external), its blocks, " +
		"the times to read and to write one, and the latency of a load"
	name, values, _ := strings.Cut(text, "=")
	parts := strings.Split(values, ",")
	x := engine.Tier{}
	for x.Tier = fleet.Host; x.Tier < fleet.Tiers && x.Tier.String() != name; x.Tier++ {
	}
	if x.Tier == fleet.Tiers || len(parts) != 4 {
		return errors.New(form)
	}

	var errs [4]error
	x.Blocks, errs[0] = strconv.Atoi(parts[0])
	x.Read, errs[1] = time.ParseDuration(parts[1])
	x.Write, errs[2] = time.ParseDuration(parts[2])
	x.Latency, errs[3] = time.ParseDuration(parts[3])
	if errors.Join(errs[:]...) != nil {
		return errors.New(form)
	}
	*t = append(*t, x)
	return nil
}

// slowdowns is the flag --slow: a factor for each of some workers.
type slowdowns map[int]float64

// String returns the factors in the form that Set accepts.
func (s *slowdowns) String() string {
	var words []string
	for _, w := range slices.Sorted(maps.Keys(*s)) {
		words = append(words, fmt.Sprintf("%d=%v", w, (*s)[w]))
	}
	return strings.Join(words, " ")
}

// Set adds one factor, or several that are separated by spaces.
func (s *slowdowns) Set(text string) error { return forEachWord(text, s.addSlowdown) }

// forEachWord adds the words of a flag one by one.
func forEachWord(text string, add func(word string) error) error {
	for _, word := range strings.Fields(text) {
		if err := add(word); err != nil {
			return err
		}
	}
	return nil
}

func (s *slowdowns) addSlowdown(text string) error {
	worker, factor, ok := strings.Cut(text, "=")
	n, err := strconv.Atoi(worker)
	v, err2 := strconv.ParseFloat(factor, 64)
	if !ok || err != nil || err2 != nil {
		return fmt.Errorf("write it like 0=3: worker 0 takes three times as long")
	}
	(*s)[n] = v
	return nil
}

// slowStarts is the flag --slow-start: a number of prompts for each of some workers.
type slowStarts map[int]int

// String returns the numbers in the form that Set accepts.
func (s *slowStarts) String() string {
	var words []string
	for _, w := range slices.Sorted(maps.Keys(*s)) {
		words = append(words, fmt.Sprintf("%d=%d", w, (*s)[w]))
	}
	return strings.Join(words, " ")
}

// Set adds one worker, or several that are separated by spaces.
func (s *slowStarts) Set(text string) error { return forEachWord(text, s.addSlowStart) }

func (s *slowStarts) addSlowStart(text string) error {
	worker, prompts, ok := strings.Cut(text, "=")
	n, err := strconv.Atoi(worker)
	v, err2 := strconv.Atoi(prompts)
	if !ok || err != nil || err2 != nil {
		return fmt.Errorf("write it like 0=3: the first 3 prompts of worker 0 are slow")
	}
	(*s)[n] = v
	return nil
}

// slowSpells is the flag --slow-spell.
type slowSpells []sim.SlowSpell

// String returns the spells in the form that Set accepts.
func (s *slowSpells) String() string {
	var words []string
	for _, x := range *s {
		words = append(words, fmt.Sprintf("%d=%v@%v+%v", x.Worker, x.Factor, x.At, x.Span))
	}
	return strings.Join(words, " ")
}

// Set adds one spell, or several that are separated by spaces.
func (s *slowSpells) Set(text string) error { return forEachWord(text, s.addSlowSpell) }

func (s *slowSpells) addSlowSpell(text string) error {
	worker, rest, ok := strings.Cut(text, "=")
	factor, times, ok2 := strings.Cut(rest, "@")
	at, span, ok3 := strings.Cut(times, "+")
	n, err := strconv.Atoi(worker)
	v, err2 := strconv.ParseFloat(factor, 64)
	from, err3 := time.ParseDuration(at)
	length, err4 := time.ParseDuration(span)
	if !ok || !ok2 || !ok3 || err != nil || err2 != nil || err3 != nil || err4 != nil {
		return fmt.Errorf("write it like 3=1.5@5m+10m: worker 3 takes 1.5 times as long from minute 5 on, for 10 minutes")
	}
	*s = append(*s, sim.SlowSpell{Worker: n, Factor: v, At: from, Span: length})
	return nil
}
