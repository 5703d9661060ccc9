package accesslog

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
)

// Envoy is the state of a connected Envoy. /debug/envoys shows it.
type Envoy struct {
	Name string `json:"envoy"`
	// Ends is the source of the last end of a booking: access_log, response, stream_end or engines; unknown before the first one.
	Ends string `json:"source"`
	// AccessLog means that entries with ids of decisions arrive from it.
	AccessLog bool `json:"access_log"`
	// Followed counts the open streams whose ends count.
	Followed int `json:"followed_streams"`
	// The ended bookings by source.
	ByAccessLog uint64 `json:"ends_access_log"`
	ByResponse  uint64 `json:"ends_response"`
	ByStreamEnd uint64 `json:"ends_stream_end"`
	ByEngines   uint64 `json:"ends_engines"`
}

// Envoys returns the Envoys that are connected, by name.
func (s *Server) Envoys() []Envoy {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Envoy, 0, len(s.sources))
	for _, name := range slices.Sorted(maps.Keys(s.sources)) {
		src := s.sources[name]
		list = append(list, Envoy{
			Name: name, AccessLog: src.log == hasLog, Ends: src.last.String(), Followed: src.followed,
			ByAccessLog: src.ends[byAccessLog], ByResponse: src.ends[byResponse],
			ByStreamEnd: src.ends[byStreamEnd], ByEngines: src.ends[byEngines],
		})
	}
	return list
}

// Metrics with a label for each connected Envoy. An Envoy that is gone takes its series along.
var (
	endsDesc = metric.Desc("accesslog", "ends_total",
		"Bookings of each connected Envoy that have ended, by the source of the end: its access log, its response phases, the end "+
			"of its ext_proc stream, or engines' reports that they are idle.", "envoy", "source")
	followedDesc = metric.Desc("accesslog", "followed_streams",
		"Streams of each connected Envoy that are open until their requests end, because it sends no access log.", "envoy")
)

// NewEnvoyCollector exports what envoys returns.
func NewEnvoyCollector(envoys func() []Envoy) prometheus.Collector {
	return metric.Collector(func(out metric.Scrape) {
		for _, e := range envoys() {
			out.Gauge(followedDesc, float64(e.Followed), e.Name)
			for by, n := range map[endSource]uint64{
				byAccessLog: e.ByAccessLog, byResponse: e.ByResponse, byStreamEnd: e.ByStreamEnd, byEngines: e.ByEngines,
			} {
				out.Counter(endsDesc, n, e.Name, by.String())
			}
		}
	})
}
