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

// several is a flag that may be given more than once. A text may have several values, with spaces between them.
type several[T any] struct {
	values []T
	parse  func(text string) (T, error)
	format func(value T) string
}

// String returns the values in the form that Set accepts.
func (s *several[T]) String() string {
	var words []string
	for _, x := range s.values {
		words = append(words, s.format(x))
	}
	return strings.Join(words, " ")
}

// Set adds values.
func (s *several[T]) Set(text string) error {
	for _, word := range strings.Fields(text) {
		x, err := s.parse(word)
		if err != nil {
			return err
		}
		s.values = append(s.values, x)
	}
	return nil
}

// perWorker is a flag with a number for each of some workers. It may be given more than once, as [several].
type perWorker[N int | float64] struct {
	numbers map[int]N
	parse   func(text string) (N, error)
	means   string // the effect of 0=3, for errors
}

// String returns the numbers in the form that Set accepts, by worker.
func (p *perWorker[N]) String() string {
	var words []string
	for _, w := range slices.Sorted(maps.Keys(p.numbers)) {
		words = append(words, fmt.Sprintf("%d=%v", w, p.numbers[w]))
	}
	return strings.Join(words, " ")
}

// Set adds numbers. Of two for one worker the last one counts.
func (p *perWorker[N]) Set(text string) error {
	for _, word := range strings.Fields(text) {
		worker, number, ok := strings.Cut(word, "=")
		w, err := strconv.Atoi(worker)
		n, err2 := p.parse(number)
		if !ok || err != nil || err2 != nil {
			return fmt.Errorf("write it like 0=3: %s", p.means)
		}
		p.numbers[w] = n
	}
	return nil
}

// newSlowdowns returns the flag --slow.
func newSlowdowns() perWorker[float64] {
	parse := func(text string) (float64, error) { return strconv.ParseFloat(text, 64) }
	return perWorker[float64]{map[int]float64{}, parse, "worker 0 takes three times as long"}
}

// newSlowStarts returns the flag --slow-start.
func newSlowStarts() perWorker[int] {
	return perWorker[int]{map[int]int{}, strconv.Atoi, "the first 3 prompts of worker 0 are slow"}
}

// newRestarts returns the flag --restart.
func newRestarts() several[sim.Restart] {
	return several[sim.Restart]{parse: parseRestart, format: func(x sim.Restart) string {
		return fmt.Sprintf("%d@%v+%v", x.Worker, x.At, x.After)
	}}
}

func parseRestart(text string) (sim.Restart, error) {
	worker, times, ok := strings.Cut(text, "@")
	at, after, ok2 := strings.Cut(times, "+")
	n, err := strconv.Atoi(worker)
	from, err2 := time.ParseDuration(at)
	span, err3 := time.ParseDuration(after)
	if !ok || !ok2 || errors.Join(err, err2, err3) != nil {
		return sim.Restart{}, errors.New("write it like 2@10m+30s: worker 2 dies after 10 minutes and is back 30 seconds later")
	}
	return sim.Restart{Worker: n, At: from, After: span}, nil
}

// newSlowSpells returns the flag --slow-spell.
func newSlowSpells() several[sim.SlowSpell] {
	return several[sim.SlowSpell]{parse: parseSlowSpell, format: func(x sim.SlowSpell) string {
		return fmt.Sprintf("%d=%v@%v+%v", x.Worker, x.Factor, x.At, x.Span)
	}}
}

func parseSlowSpell(text string) (sim.SlowSpell, error) {
	worker, rest, ok := strings.Cut(text, "=")
	factor, times, ok2 := strings.Cut(rest, "@")
	at, span, ok3 := strings.Cut(times, "+")
	n, err := strconv.Atoi(worker)
	v, err2 := strconv.ParseFloat(factor, 64)
	from, err3 := time.ParseDuration(at)
	length, err4 := time.ParseDuration(span)
	if !ok || !ok2 || !ok3 || errors.Join(err, err2, err3, err4) != nil {
		return sim.SlowSpell{}, errors.New(
			"write it like 3=1.5@5m+10m: worker 3 takes 1.5 times as long from minute 5 on, for 10 minutes")
	}
	return sim.SlowSpell{Worker: n, Factor: v, At: from, Span: length}, nil
}

// newTiers returns the flag --tier.
func newTiers() several[engine.Tier] {
	return several[engine.Tier]{parse: parseTier, format: func(x engine.Tier) string {
		return fmt.Sprintf("%v=%d,%v,%v,%v", x.Tier, x.Blocks, x.Read, x.Write, x.Latency)
	}}
}

func parseTier(text string) (engine.Tier, error) {
	const form = "write it like host=20000,60us,60us,1ms: a tier (host, disk or external), its blocks, " +
		"the times to read and to write one, and the latency of a load"
	name, values, _ := strings.Cut(text, "=")
	parts := strings.Split(values, ",")
	x := engine.Tier{}
	for x.Tier = fleet.Host; x.Tier < fleet.Tiers && x.Tier.String() != name; x.Tier++ {
	}
	if x.Tier == fleet.Tiers || len(parts) != 4 {
		return x, errors.New(form)
	}

	var errs [4]error
	x.Blocks, errs[0] = strconv.Atoi(parts[0])
	x.Read, errs[1] = time.ParseDuration(parts[1])
	x.Write, errs[2] = time.ParseDuration(parts[2])
	x.Latency, errs[3] = time.ParseDuration(parts[3])
	if errors.Join(errs[:]...) != nil {
		return x, errors.New(form)
	}
	return x, nil
}
