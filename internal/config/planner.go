package config

import (
	"fmt"
	"net/url"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/forecast"
)

// The values of planner.connector.
const (
	ConnectorNone    = "none"
	ConnectorLocal   = "local"
	ConnectorVirtual = "virtual"
)

// The bounds of a plan's settings.
const (
	minInterval  = Duration(time.Second)
	maxInterval  = Duration(10 * time.Minute)
	maxHold      = Duration(24 * time.Hour)
	maxGPUs      = 1 << 20
	maxWatts     = 1e9
	maxStartUp   = Duration(time.Hour)
	maxLatency   = Duration(time.Hour)
	maxNamespace = 256
)

// ByAgents reports whether agents start and stop engines as plans ask for, if plans are not advisory.
func (p *Planner) ByAgents() bool { return p.Connector == ConnectorLocal }

func (v *validator) planner(p *Planner) {
	v.oneOf(p.Algorithm, plan.Algorithms(), "planner.algorithm")
	v.oneOf(p.Connector, []string{ConnectorNone, ConnectorLocal, ConnectorVirtual}, "planner.connector")
	v.oneOf(p.Mode, []string{plan.ModeBoth, plan.ModeThroughput, plan.ModeLoad}, "planner.mode")
	v.oneOf(p.Forecast, forecast.Names(), "planner.forecast")
	v.is(p.Interval >= minInterval && p.Interval <= maxInterval, "planner.interval", "must lie between %s and %s", minInterval, maxInterval)
	v.targets(&Targets{p.TTFT, p.ITL, p.E2E, p.Quantile}, "planner")
	v.is(p.Headroom > 0 && p.Headroom < 1, "planner.headroom", "must lie between 0 and 1")
	v.is(p.DownAfter >= 0 && p.DownAfter <= maxHold, "planner.downAfter", "must lie between 0s and %s", maxHold)
	v.is(p.DrainTimeout >= 0 && p.DrainTimeout <= maxHold, "planner.drainTimeout", "must lie between 0s and %s", maxHold)
	v.is(p.MinGPUs >= 0 && p.MinGPUs <= maxGPUs, "planner.minGPUs", "must lie between 0 and %d", maxGPUs)
	v.is(p.MaxGPUs >= 0 && p.MaxGPUs <= maxGPUs, "planner.maxGPUs", "must lie between 0 and %d", maxGPUs)
	v.is(p.MaxGPUs == 0 || p.MinGPUs <= p.MaxGPUs, "planner.minGPUs", "is more than maxGPUs, which is %d", p.MaxGPUs)
	v.is(p.MaxWatts >= 0 && p.MaxWatts <= maxWatts, "planner.maxWatts", "must lie between 0 and %g", maxWatts)
	v.prometheus(&p.Prometheus)
}

func (v *validator) prometheus(p *Prometheus) {
	const path = "planner.prometheus"
	u, err := url.Parse(p.URL)
	v.is(p.URL == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", path+".url",
		"must be a URL such as http://prometheus:9090")
	v.is(p.URL != "" || p.TokenFile == "" && p.CAFile == "", path+".url", "is required with tokenFile or caFile")
	v.is(len(p.Namespace) <= maxNamespace, path+".namespace", "must have at most %d characters", maxNamespace)
}

func (v *validator) targets(t *Targets, path string) {
	for _, d := range []struct {
		name string
		v    Duration
	}{{"ttft", t.TTFT}, {"itl", t.ITL}, {"e2e", t.E2E}} {
		v.is(d.v >= 0 && d.v <= maxLatency, path+"."+d.name, "must lie between 0s and %s", maxLatency)
	}
	v.is(t.Quantile > 0 && t.Quantile < 1, path+".quantile", "must lie between 0 and 1")
}

// scale checks the bounds of a launch, and the planner's assumptions about its engines.
func (v *validator) scale(l *Launch, path string) {
	v.is(l.StartUp >= 0 && l.StartUp <= maxStartUp, path+".startUp", "must lie between 0s and %s", maxStartUp)
	if l.GPU != "" {
		_, err := perfmodel.FindGPU(l.GPU)
		v.is(err == nil, path+".gpu", "%v", err)
	}
	if l.Max == l.Count && l.Min == l.Count {
		return // the number alone is set
	}
	v.is(l.Max >= 1 && l.Max <= maxCount, path+".max", "must lie between 1 and %d", maxCount)
	v.is(l.Min >= 0 && l.Min <= l.Max, path+".min", "must lie between 0 and max, which is %d", l.Max)
	v.is(l.Count >= l.Min && l.Count <= l.Max, path+".count", "must lie between min and max, which are %d and %d", l.Min, l.Max)
}

// checkScaled refuses bounds that no planner uses, and a planner that could scale nothing.
func (v *validator) checkScaled(c *Config) {
	v.is(c.Planner.Warm == "" || len(c.Models) == 1, "planner.warm", "needs a single model: its rates are those of one")
	scalable := false
	for i := range c.Models {
		for k := range c.Models[i].Launch {
			l := &c.Models[i].Launch[k]
			scalable = scalable || l.Min < l.Max
			v.is(l.Max == l.Count || c.Planner.Connector == ConnectorLocal, fmt.Sprintf("models[%d].launch[%d].max", i, k),
				"has no effect: set planner.connector to local")
		}
	}
	v.is(scalable || c.Planner.Connector != ConnectorLocal, "planner.connector",
		"is local, and no launch has a max above its min: there is nothing to scale")
}
