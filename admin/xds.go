package admin

import (
	"fmt"
	"strconv"
	"time"

	"github.com/stator-project/stator/xds"
)

// xdsView is /debug/xds: the resources that the control plane has sent to Envoys, and that they accepted.
type xdsView struct {
	// Failures are the parts of the configuration that cannot be built. Their last good versions stay in force.
	Failures []xds.Failure `json:"failures"`
	Envoys   []xdsEnvoy    `json:"envoys"`
	// Unlisted counts the streams of Envoys that are not listed, because there are too many.
	Unlisted int `json:"unlisted_streams"`
}

// xdsEnvoy is one connected Envoy.
type xdsEnvoy struct {
	Envoy   string    `json:"envoy"` // its node id
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Streams int       `json:"streams"`
	Types   []xdsType `json:"types"`
}

// xdsType has the responses that an Envoy was sent for one type of resource.
type xdsType struct {
	Type   string `json:"type"`
	Pushes uint64 `json:"pushes"`
	Sent   string `json:"sent"` // the version of the last response
	// Accepted is the version that the Envoy accepted last, and Refusal its last refusal (NACK). Null for none.
	SentAt     time.Time    `json:"sent_at"`
	Accepted   *string      `json:"accepted"`
	AcceptedAt *time.Time   `json:"accepted_at"`
	Refusal    *xds.Refusal `json:"refusal"`
}

func viewXDS(s xds.Status) xdsView {
	view := xdsView{Failures: append([]xds.Failure{}, s.Failures...), Envoys: []xdsEnvoy{}, Unlisted: s.Unlisted}
	for i := range s.Envoys {
		e := &s.Envoys[i]
		out := xdsEnvoy{e.Node, e.Version, e.Since, e.Streams, []xdsType{}}
		for j := range e.Types {
			out.Types = append(out.Types, viewXDSType(&e.Types[j]))
		}
		view.Envoys = append(view.Envoys, out)
	}
	return view
}

func viewXDSType(t *xds.TypeStatus) xdsType {
	out := xdsType{Type: t.Type, Pushes: t.Pushes, Sent: t.Sent, SentAt: t.SentAt, Refusal: t.Refusal}
	if t.Accepted != "" {
		out.Accepted, out.AcceptedAt = &t.Accepted, &t.AcceptedAt
	}
	return out
}

// xdsTables shows failures and refusals as lines below the table of Envoys, because their texts are long.
func xdsTables(s xds.Status) string {
	text := table("ENVOY\tVERSION\tSTREAMS\tTYPE\tPUSHES\tSENT\tAT\tACCEPTED\tAT", func(row func(...any)) {
		for i := range s.Envoys {
			e := &s.Envoys[i]
			for _, t := range e.Types {
				accepted, at := "-", "-"
				if t.Accepted != "" {
					accepted, at = t.Accepted, t.AcceptedAt.Format(timeOfDay)
				}
				row(e.Node, e.Version, e.Streams, t.Type, t.Pushes, t.Sent, t.SentAt.Format(timeOfDay), accepted, at)
			}
		}
	})
	if s.Unlisted > 0 {
		text += fmt.Sprintf("and %d more streams of Envoys that are not listed\n", s.Unlisted)
	}

	for i := range s.Envoys {
		for _, t := range s.Envoys[i].Types {
			if r := t.Refusal; r != nil {
				text += fmt.Sprintf("%s refused %s %s at %s: %s\n", s.Envoys[i].Node, t.Type, r.Version, r.At.Format(timeOfDay),
					strconv.Quote(r.Message))
			}
		}
	}
	for _, f := range s.Failures {
		text += fmt.Sprintf("%s cannot be built since %s, and the last good version stays in force: %s\n", f.Part,
			f.Since.Format(timeOfDay), strconv.Quote(f.Error))
	}
	return text
}

// timeOfDay is the format of times in tables.
const timeOfDay = "15:04:05.000"
