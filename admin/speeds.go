package admin

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/learned"
)

// speedView is the learned speed of one kind of worker, for /debug/speeds.
type speedView struct {
	Model   string   `json:"model"`
	Engine  string   `json:"engine"`
	Prefill lineView `json:"prefill"`
	Decode  lineView `json:"decode"`
	// Transfers are the times of transfers of KV caches, by the narrowest place that both workers share: apart for none, zone, rack or
	// nvlink. Places without an observation are left out.
	Transfers map[string]lineView `json:"transfers,omitempty"`
	Ranks     []paceView          `json:"ranks"`
}

// paceView is the speed of one rank, relative to its kind. Ratio is the observed mean of its prefill times
// divided by their estimates, and Doubt its standard error. Pace is the factor that decisions use: 1 if the
// ratio may differ from 1 by chance. Ignored prefills came before the others, while the engine was warming up.
type paceView struct {
	Worker   string  `json:"worker"`
	Rank     int     `json:"rank"`
	Pace     float64 `json:"pace"`
	Ratio    float64 `json:"ratio"`
	Doubt    float64 `json:"doubt"`
	Observed int     `json:"observed"`
	Ignored  int     `json:"ignored"`
}

// lineView is a duration that grows linearly with a number of tokens. Error is the mean relative error
// of its estimates.
type lineView struct {
	BaseMS   float64 `json:"base_ms"`
	TokenUS  float64 `json:"token_us"`
	Observed int     `json:"observed"`
	Error    float64 `json:"error"`
}

func viewLine(l perfmodel.Line) lineView {
	return lineView{
		BaseMS: float64(l.Base) / float64(time.Millisecond), TokenUS: l.Token / float64(time.Microsecond),
		Observed: l.Observed, Error: l.Error,
	}
}

// viewSpeeds lists the kinds of workers, each with its ranks.
func viewSpeeds(r *route.Router) []speedView {
	ranks := map[learned.WorkerClass][]paceView{}
	for _, p := range r.Paces(time.Now()) {
		ranks[p.Class] = append(ranks[p.Class], paceView{
			Worker: p.Worker, Rank: p.Rank, Pace: rounded(p.Pace), Ratio: rounded(p.Ratio), Doubt: rounded(p.Doubt),
			Observed: p.Prefills, Ignored: p.Ignored,
		})
	}

	list := []speedView{}
	transfers := r.Transfers(time.Now())
	for kind, s := range r.Speeds() {
		lines := transfers[kind]
		list = append(list, speedView{
			kind.Model, kind.Engine, viewLine(s.Prefill), viewLine(s.Decode), viewTransfers(&lines), ranks[kind],
		})
	}
	slices.SortFunc(list, func(a, b speedView) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(a.Engine, b.Engine))
	})
	return list
}

// viewTransfers returns the times of transfers that were observed; nil for none.
func viewTransfers(lines *[fleet.Levels]perfmodel.Line) (out map[string]lineView) {
	for level, line := range lines {
		if line.Observed == 0 {
			continue
		}
		if out == nil {
			out = map[string]lineView{}
		}
		out[fleet.Level(level).String()] = viewLine(line)
	}
	return out
}

// rounded keeps three decimals, which is more than is known of a pace.
func rounded(v float64) float64 { return math.Round(1000*v) / 1000 }

func speedsText(r *route.Router) string {
	var b strings.Builder
	for _, s := range viewSpeeds(r) {
		fmt.Fprintf(&b, "%s on %s: %.1f ms a pass with prompts and %.2f µs a token to compute; "+
			"%.1f ms a decode step and %.4f µs a token in the cache; from %d observations, %.0f %% off\n",
			s.Model, cmp.Or(s.Engine, "an unnamed engine"), s.Prefill.BaseMS, s.Prefill.TokenUS,
			s.Decode.BaseMS, s.Decode.TokenUS, s.Decode.Observed, 100*s.Decode.Error)
		for level := range fleet.Levels {
			if t, observed := s.Transfers[level.String()]; observed {
				fmt.Fprintf(&b, "  transfers %s: %.1f ms and %.2f µs a token; from %d observations, %.0f %% off\n",
					level.Phrase(), t.BaseMS, t.TokenUS, t.Observed, 100*t.Error)
			}
		}
		for _, p := range s.Ranks {
			fmt.Fprintf(&b, "  %s rank %d: passes take %.2f times as long "+
				"(%.2f ± %.2f from %d observations, after %d prompts that were ignored)\n",
				p.Worker, p.Rank, p.Pace, p.Ratio, p.Doubt, p.Observed, p.Ignored)
		}
	}
	return b.String()
}
