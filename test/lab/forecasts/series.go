package forecasts

import (
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/renewal"
	"github.com/stator-project/stator/test/lab/tracefiles"
	"github.com/stator-project/stator/test/stats"
)

// series is requests per second of consecutive steps.
type series struct {
	name   string
	values []float64
	// season is its season in steps; 0 is none. Forecasts are scored from step scored on.
	season, scored int
}

func (s series) mean() float64 { return stats.Mean(s.values) }

func (s series) deviation() float64 {
	mean, squares := s.mean(), 0.0
	for _, v := range s.values {
		squares += (v - mean) * (v - mean)
	}
	return math.Sqrt(squares / float64(len(s.values)))
}

// counted returns the series of arrivals, whose last step ends at a time.
func counted(name string, arrivals []time.Duration, end time.Duration) series {
	values := make([]float64, end/step)
	for _, at := range arrivals {
		if i := int(at / step); i < len(values) {
			values[i] += 1 / step.Seconds()
		}
	}
	return series{name: name, values: values}
}

// allSeries returns the series, and a sentence for each one that is left out.
func allSeries(traces string, seed uint64, quick bool) (list []series, skipped []string, err error) {
	hours := func(h float64) time.Duration {
		if quick {
			h /= 8
		}
		return time.Duration(h * float64(time.Hour))
	}

	azure, ok, err := azureHour(traces)
	if err != nil {
		return nil, nil, err
	}
	if ok {
		list = append(list, azure)
	} else {
		skipped = append(skipped, "The hour of Azure is left out, because its trace is not on this machine. "+tracefiles.Hint)
	}
	clients, err := readClients(clientsText)
	if err != nil {
		return nil, nil, err
	}
	days := serveGen(clients, 40, hours(96), seed)
	days.scored = len(days.values) / 4
	return append(list, days, sinusoid(hours(3), seed), spikes(hours(6), seed)), skipped, nil
}

// azureHour reads the conversations of Azure's trace of 2023.
func azureHour(folder string) (s series, ok bool, err error) {
	path, ok := tracefiles.Find(folder, tracefiles.Azure.Path)
	if !ok {
		return s, false, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return s, false, err
	}
	defer f.Close()

	var arrivals []time.Duration
	next := trace.Azure(f, false)
	for {
		a, more, err := next()
		if err != nil {
			return s, false, fmt.Errorf("read %s: %w", path, err)
		}
		if !more {
			break
		}
		arrivals = append(arrivals, a.At)
	}
	s = counted("Azure 2023, conversations", arrivals, arrivals[len(arrivals)-1])
	s.scored = 60
	return s, true, nil
}

// client is the parameters of one client of ServeGen.
type client struct {
	rate, cv, variation float64
	weibull             bool
	hours               [24]float64
}

//go:embed servegen.txt
var clientsText string

// readClients parses servegen.txt, whose first lines describe it.
func readClients(text string) ([]client, error) {
	var out []client
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		var c client
		var name, distribution string
		values := []any{&name, &c.rate, &c.cv, &distribution, &c.variation}
		for i := range c.hours {
			values = append(values, &c.hours[i])
		}
		if _, err := fmt.Sscan(line, values...); err != nil {
			return nil, fmt.Errorf("read client %.20q: %w", line, err)
		}
		c.weibull = distribution == "weibull"
		out = append(out, c)
	}
	return out, nil
}

// serveGen composes arrivals of clients, scaled to a rate in requests per second. Each client has the rate of its hour, times a
// factor that changes every 10 minutes, and times between arrivals from its distribution.
func serveGen(clients []client, rate float64, length time.Duration, seed uint64) series {
	const window = 10 * time.Minute
	total := 0.0
	for _, c := range clients {
		total += c.rate
	}

	var arrivals []time.Duration
	for i, c := range clients {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		between := renewal.Intervals(c.weibull, c.cv)
		factor, until := 0.0, time.Duration(0)
		for at := time.Duration(0); at < length; {
			if at >= until {
				factor, until = renewal.Gamma(r, c.variation), at.Truncate(window)+window
			}
			now := c.rate / total * rate * c.hours[int(at/time.Hour)%24] * factor
			wait := window.Seconds()
			if now > 1e-3 {
				wait = between(r) / now
			}

			// A long wait ends with the window, whose successor has another rate.
			next := at + time.Duration(min(wait, 1e6)*float64(time.Second))
			if next >= until {
				at = until
				continue
			}
			at = next
			arrivals = append(arrivals, at)
		}
	}
	s := counted("ServeGen m-small, 90 % of its requests", arrivals, length)
	s.season = int(24 * time.Hour / step)
	return s
}

// poisson returns arrivals with a rate that changes over time, at most as high as given.
func poisson(length time.Duration, most float64, seed uint64, rate func(at time.Duration) float64) []time.Duration {
	r := rand.New(rand.NewPCG(seed, 99))
	var out []time.Duration
	for at := time.Duration(0); at < length; {
		at += time.Duration(r.ExpFloat64() / most * float64(time.Second))
		if r.Float64()*most < rate(at) {
			out = append(out, at)
		}
	}
	return out
}

// sinusoid is the trace that Dynamo's planner is shown with: 5 to 45 requests/s with a period of 600 s.
func sinusoid(length time.Duration, seed uint64) series {
	const period = 600 * time.Second
	arrivals := poisson(length, 45, seed, func(at time.Duration) float64 {
		return 25 - 20*math.Cos(2*math.Pi*at.Seconds()/period.Seconds())
	})
	s := counted("sinusoid, 5 to 45 rps in 600 s", arrivals, length)
	s.season, s.scored = int(period/step), 2*int(period/step)
	return s
}

// spikes is 4 requests/s, and 40 for a minute at times that nothing announces, every 10 minutes in the mean.
func spikes(length time.Duration, seed uint64) series {
	r := rand.New(rand.NewPCG(seed, 17))
	busy := map[int]bool{} // minutes
	for at := 0.0; at < length.Minutes(); at += 1 + 9*r.ExpFloat64() {
		busy[int(at)] = true
	}
	arrivals := poisson(length, 40, seed, func(at time.Duration) float64 {
		if busy[int(at.Minutes())] {
			return 40
		}
		return 4
	})
	s := counted("spikes of a minute, 4 to 40 rps", arrivals, length)
	s.scored = 120
	return s
}
