package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route"
)

// speedView is the learned speed of one kind of worker, for /debug/speeds.
type speedView struct {
	Model   string   `json:"model"`
	Engine  string   `json:"engine"`
	Prefill lineView `json:"prefill"`
	Decode  lineView `json:"decode"`
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

func viewSpeeds(r *route.Router) []speedView {
	list := []speedView{}
	for kind, s := range r.Speeds() {
		list = append(list, speedView{kind.Model, kind.Engine, viewLine(s.Prefill), viewLine(s.Decode)})
	}
	slices.SortFunc(list, func(a, b speedView) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(a.Engine, b.Engine))
	})
	return list
}

func speedsText(r *route.Router) string {
	var b strings.Builder
	for _, s := range viewSpeeds(r) {
		fmt.Fprintf(&b, "%s on %s: %.1f ms a prompt and %.2f µs a token to compute, from %d prompts, %.0f %% off; "+
			"%.1f ms a decode step and %.4f µs a token in the cache, from %d reports, %.0f %% off\n",
			s.Model, cmp.Or(s.Engine, "an unnamed engine"), s.Prefill.BaseMS, s.Prefill.TokenUS, s.Prefill.Observed, 100*s.Prefill.Error,
			s.Decode.BaseMS, s.Decode.TokenUS, s.Decode.Observed, 100*s.Decode.Error)
	}
	return b.String()
}
