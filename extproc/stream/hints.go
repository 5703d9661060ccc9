package stream

import (
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
)

// Hints is which routing hints of clients count. A client whose hints count can go before others, and
// can choose its worker.
type Hints string

// The values. Hints of headers take precedence over those of the body.
const (
	HintsOff     Hints = "off"     // none
	HintsBody    Hints = "nvext"   // nvext in the body
	HintsHeaders Hints = "headers" // the headers x-stator-…, and nvext in the body
)

// applyHints adds the hints that count to a request. It returns the answer to a header whose value is
// wrong; nil where all is well.
func (x *exchange) applyHints(req *route.Request) *answer {
	trusted := x.srv.settings.Load().Hints
	req.IgnoreBodyHints = trusted == HintsOff
	if trusted != HintsHeaders || len(x.head.hintHeaders) == 0 {
		return nil
	}

	h := &prompt.Hints{Rank: -1}
	for _, header := range x.head.hintHeaders {
		if err := h.SetHeader(header.Key, header.Value); err != nil {
			return refusal(err, string(route.ReasonBadRequest))
		}
	}
	req.Hints = h
	return nil
}
