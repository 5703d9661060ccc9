package planner

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/plan"
)

// metrics are the planner's figures. Their labels are configured models and roles.
type metrics struct {
	plans, carried           *prometheus.CounterVec
	last, leading            prometheus.Gauge
	demandErrors, unrecorded prometheus.Counter
	wanted, ready, unknown   *prometheus.GaugeVec
	rate, expected, drained  *prometheus.GaugeVec
	startUp                  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	part := metric.For(reg, "planner")
	m := &metrics{
		plans:   part.Counters("plans_total", "Plans by result: published or error.", "result"),
		carried: part.Counters("carried_total", "Plans given to the connector, by result: accepted or error.", "result"),
		last:    part.Gauge("last_plan_timestamp_seconds", "Time of the last published plan."),
		leading: part.Gauge("leading", "1 while this planner leads, else 0."),
		demandErrors: part.Counter("demand_errors_total",
			"Plans made without demand because its source failed, where that is Prometheus."),
		unrecorded: part.Counter("unrecorded_total", "Plans that could not be written to the plan log."),

		wanted:  part.Gauges("replicas", "Workers that the plan asks for.", "model", "role"),
		ready:   part.Gauges("ready", "Workers that were ready when the plan was made.", "model", "role"),
		drained: part.Gauges("draining", "Workers that the plan drains.", "model", "role"),
		unknown: part.Gauges("unknown", "Figures that were not known when the plan was made.", "model", "role"),
		rate:    part.Gauges("requests_per_second", "Requests per second that are expected now.", "model", "role"),
		startUp: part.Gauges("start_up_seconds",
			"Time in which a worker is ready that starts because requests wait; 0 if none starts for that reason.", "model", "role"),
		expected: part.Gauges("expected_requests_per_second", "Requests per second that the plan is made for.", "model", "role"),
	}

	for _, result := range []string{"published", "error"} { // present before the first plan
		m.plans.WithLabelValues(result)
	}
	for _, result := range []string{"accepted", "error"} {
		m.carried.WithLabelValues(result)
	}
	return m
}

// observe sets the gauges of a plan. Pools of models that were removed go with the others.
func (m *metrics) observe(p *plan.Plan) {
	for _, g := range []*prometheus.GaugeVec{m.wanted, m.ready, m.drained, m.unknown, m.rate, m.expected, m.startUp} {
		g.Reset()
	}
	for i := range p.Pools {
		pool := &p.Pools[i]
		drained := 0
		for _, w := range pool.Workers {
			if w.Drain {
				drained++
			}
		}
		set := func(g *prometheus.GaugeVec, v float64) { g.WithLabelValues(pool.Model, pool.Role.String()).Set(v) }
		set(m.wanted, float64(pool.Replicas))
		set(m.ready, float64(pool.Ready))
		set(m.drained, float64(drained))
		set(m.unknown, float64(len(pool.Unknown)))
		set(m.rate, pool.Rate)
		set(m.expected, pool.Expected)
		set(m.startUp, pool.StartUp.Seconds())
	}
}
