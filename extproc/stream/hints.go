package stream

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
)

// Hints is what clients are trusted with: whose word on priorities, classes and workers counts.
type Hints string

// The values.
const (
	HintsOff     Hints = "off"     // nobody's
	HintsBody    Hints = "nvext"   // that of nvext in the body
	HintsHeaders Hints = "headers" // that of the headers x-stator-…, and of nvext where they say nothing
)

// hear takes what the client says of routing into the request.
func (x *exchange) hear(req *route.Request) *answer {
	trust := x.srv.settings.Load().Hints
	req.IgnoreBodyHints = trust == HintsOff
	if trust != HintsHeaders || len(x.head.said) == 0 {
		return nil
	}
	h := &prompt.Hints{Rank: -1}
	for _, said := range x.head.said {
		if must := hear(req, h, said.Key, said.Value); must != "" {
			return refusal(&openai.Error{Status: http.StatusBadRequest, Type: openai.InvalidRequest, Param: said.Key, Code: "invalid_header",
				Message: fmt.Sprintf("The header %s is %q: it must be %s.", said.Key, clip(said.Value), must)}, string(route.ReasonBadRequest))
		}
	}
	req.Hints = h
	return nil
}

// Bounds of headers: those that nvext has.
const (
	maxHint      = 256
	maxHeadStart = 86_400
	maxStrict    = 1 << 20
)

// hear takes one header, or says what it must be. Headers that mean nothing are nobody's business.
func hear(req *route.Request, h *prompt.Hints, key, value string) (must string) {
	if len(value) > maxHint {
		return fmt.Sprintf("at most %d bytes long", maxHint)
	}
	switch key {
	case envoynames.HeaderPriority:
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v >= 0 && v <= maxHeadStart) {
			return "a number of seconds from 0 to 86400"
		}
		h.Priority = time.Duration(v * float64(time.Second))
	case envoynames.HeaderDeadline:
		v, err := time.ParseDuration(value)
		if err != nil || v < time.Millisecond || v > maxHeadStart*time.Second {
			return "a duration such as 1500ms, from 1ms to 24h"
		}
		h.Deadline = v
	case envoynames.HeaderStrict:
		return whole(&h.Strict, value, maxStrict)
	case envoynames.HeaderRank:
		return whole(&h.Rank, value, 1<<16-1)
	case envoynames.HeaderClass:
		h.Class = value
	case envoynames.HeaderTenant:
		req.Tenant = value
	case envoynames.HeaderWorker:
		h.Worker = value
	}
	return ""
}

func whole(into *int, value string, most int) (must string) {
	v, err := strconv.Atoi(value)
	if err != nil || v < 0 || v > most {
		return fmt.Sprintf("a whole number from 0 to %d", most)
	}
	*into = v
	return ""
}
