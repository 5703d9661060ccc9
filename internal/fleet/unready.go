package fleet

import (
	"fmt"
	"strings"
)

// maxUnready bounds the workers that Unready names, because all workers of a large fleet may be away at once.
const maxUnready = 3

// Unready describes the workers of a model that are not ready, such as "a is down (connection refused)". An empty model
// means all models. The text is empty if there are none.
func (s *Snapshot) Unready(model string) string {
	var list []string
	more := 0

	for _, r := range s.Ranks {
		w := r.Worker
		if r.Number > 0 || w.State == Ready || model != "" && w.Model != model {
			continue
		}
		if len(list) == maxUnready {
			more++
			continue
		}
		text := w.Name + " is " + w.State.String()
		if why := r.Load.Health().View().Why; w.byOperator {
			text += " (an operator has drained it)"
		} else if w.withheld {
			text += " (the plan drains it)"
		} else if why != "" {
			text += " (" + why + ")"
		}
		list = append(list, text)
	}

	if more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}
