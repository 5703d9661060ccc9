package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/route"
)

// speed is what has been learned of one kind of worker, as JSON.
type speed struct {
	Model    string  `json:"model"`
	Engine   string  `json:"engine"`
	BaseMS   float64 `json:"base_ms"`
	TokenUS  float64 `json:"token_us"`
	Observed int     `json:"observed"`
	Error    float64 `json:"error"`
}

func viewSpeeds(r *route.Router) []speed {
	list := []speed{}
	for kind, line := range r.Speeds() {
		list = append(list, speed{kind.Model, kind.Engine, float64(line.Base) / float64(time.Millisecond), line.Token / 1e3, line.Observed, line.Error})
	}
	slices.SortFunc(list, func(a, b speed) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), strings.Compare(a.Engine, b.Engine))
	})
	return list
}

func speedsText(r *route.Router) string {
	var b strings.Builder
	for _, s := range viewSpeeds(r) {
		fmt.Fprintf(&b, "%s on %s: %.1f ms a prompt and %.2f µs a token to compute, from %d prompts, %.0f %% off\n",
			s.Model, cmp.Or(s.Engine, "an engine of no name"), s.BaseMS, s.TokenUS, s.Observed, 100*s.Error)
	}
	return b.String()
}
