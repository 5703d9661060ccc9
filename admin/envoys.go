package admin

import "github.com/stator-project/stator/extproc/accesslog"

// envoyView is one Envoy of /debug/envoys: the source of the ends of its bookings, and how many each source has ended.
type envoyView struct {
	Envoy string `json:"envoy"`
	// Source is the source of the last end: access_log, response, stream_end or engines; unknown before the first one.
	Source    string `json:"source"`
	AccessLog bool   `json:"access_log"` // entries with ids of decisions arrive
	// Followed counts streams that stay open until their requests end.
	Followed      int    `json:"followed_streams"`
	EndsAccessLog uint64 `json:"ends_access_log"`
	EndsResponse  uint64 `json:"ends_response"`
	EndsStream    uint64 `json:"ends_stream_end"`
	EndsEngines   uint64 `json:"ends_engines"`
}

func viewEnvoys(list []accesslog.Envoy) []envoyView {
	out := []envoyView{}
	for _, e := range list {
		out = append(out, envoyView{e.Name, e.Ends, e.AccessLog, e.Followed, e.ByAccessLog, e.ByResponse, e.ByStreamEnd, e.ByEngines})
	}
	return out
}

func envoyTable(list []accesslog.Envoy) string {
	return table("ENVOY\tENDS BY\tFOLLOWED\tACCESS LOG\tRESPONSE\tSTREAM END\tENGINES", func(row func(...any)) {
		for _, e := range list {
			row(e.Name, e.Ends, e.Followed, e.ByAccessLog, e.ByResponse, e.ByStreamEnd, e.ByEngines)
		}
	})
}
