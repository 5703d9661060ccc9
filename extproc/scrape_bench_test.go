package extproc

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stator-project/stator/extproc/answers"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/test/testkit"
)

// BenchmarkScrape: how long does a scrape of a router take, and how large is it? The workers of 20 models have answered requests of 1,000
// tenants, each tenant with each model. B/series is the memory of the router's metrics.
//
//	make bench-scrape
func BenchmarkScrape(b *testing.B) {
	for _, workers := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			before := heap()
			reg := answeringRouter(b, workers, 1000)
			page := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
			used := heap() - before
			w := httptest.NewRecorder()
			page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			series := 0
			for line := range strings.Lines(w.Body.String()) {
				if !strings.HasPrefix(line, "#") {
					series++
				}
			}

			b.ReportAllocs()
			for b.Loop() {
				page.ServeHTTP(discarded{w}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			}
			b.ReportMetric(float64(series), "series")
			b.ReportMetric(float64(w.Body.Len())/(1<<20), "MiB/scrape")
			b.ReportMetric(float64(used)/(1<<20), "MiB/router")
		})
	}
}

// answeringRouter returns the registry of a router whose workers have answered requests of so many tenants.
func answeringRouter(b *testing.B, workers, tenants int) *prometheus.Registry {
	b.Helper()
	const models = 20
	var text strings.Builder
	text.WriteString("{apiVersion: stator.dev/v1alpha1, kind: Stator, index: {maxBytes: 1048576}, models: [")
	for m := range models {
		fmt.Fprintf(&text, "{name: m%d, path: 'builtin:sim', workers: [", m)
		for i := m; i < workers; i += models {
			fmt.Fprintf(&text, "{name: w%d, address: '10.0.%d.%d:80', healthPath: none, ranks: 1},", i, i/250, i%250+1)
		}
		text.WriteString("]},")
	}
	text.WriteString("]}")
	settings, err := config.Parse([]byte(text.String()))
	if err != nil {
		b.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	r, err := New(Config{Settings: settings, Log: new(testkit.Log).Logger(), Metrics: reg})
	if err != nil {
		b.Fatal(err)
	}

	f := r.fleet.Snapshot()
	answer := func(w *fleet.Worker, tenant int) {
		caller := pick.Caller{Source: "envoy", Account: fmt.Sprintf("tenant-%d", tenant), Stream: true}
		k := &pick.Booking{Rank: fleet.Rank{Worker: w}, Caller: unique.Make(caller), Tokens: pick.Tokens{Prompt: 1000, Cached: 600}}
		e := &messages.Entry{Served: w.Address, Status: 200, FirstToken: 300 * time.Millisecond, LastByte: 3 * time.Second}
		r.answers.Ended(k, e, answers.How{}, f)
	}
	for i, w := range f.Workers {
		answer(w, i%tenants)
	}
	for tenant := range tenants {
		for m := range models {
			answer(f.Workers[m%len(f.Workers)], tenant)
		}
	}
	return reg
}

// heap returns the bytes in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// discarded is a response whose body nobody keeps.
type discarded struct{ http.ResponseWriter }

func (discarded) Write(p []byte) (int, error) { return len(p), nil }
