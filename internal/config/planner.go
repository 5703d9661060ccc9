package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/forecast"
)

// Targets are bounds of latencies. 0s is no bound.
type Targets struct {
	// TTFT is the time to the first token.
	TTFT Duration `yaml:"ttft" default:"the value of planner"`
	// ITL is the mean time between the tokens of a request.
	ITL Duration `yaml:"itl" default:"the value of planner"`
	// E2E is the time of a whole request.
	E2E Duration `yaml:"e2e" default:"the value of planner"`
	// Quantile is the share of requests that are to be within the bounds, above 0 and below 1.
	Quantile float64 `yaml:"quantile" default:"the value of planner"`
}

// Planner configures how many workers each model has.
type Planner struct {
	// Algorithm decides. "configured" means the configured numbers. "sla" keeps the targets: it forecasts demand, and computes
	// the workers for it from a profile or an estimate. "reactive" is the rule of Kubernetes' horizontal pod autoscaler. See
	// docs/planning.md.
	Algorithm string `yaml:"algorithm"`
	// Connector carries plans out: "local" has agents start and stop engines, "kubernetes" scales the objects of launch[].target,
	// "virtual" publishes the numbers on the bus for a program of yours, and "none" carries nothing out.
	Connector string `yaml:"connector" reload:"the planner"`
	// UpOnly has connector kubernetes raise numbers of replicas and lower none, and drain no worker.
	UpOnly bool `yaml:"upOnly"`
	// Advisory makes plans and shows them, and carries nothing out: no worker is started, drained or weighted.
	Advisory bool `yaml:"advisory"`
	// Interval is the time between two plans, 1s to 10m.
	Interval Duration `yaml:"interval" reload:"the planner"`
	// TTFT is the longest time to the first token. 0s is no bound. A shorter one needs more workers.
	TTFT Duration `yaml:"ttft"`
	// ITL is the longest mean time between the tokens of a request. 0s is no bound.
	ITL Duration `yaml:"itl"`
	// E2E is the longest time of a whole request. 0s is no bound.
	E2E Duration `yaml:"e2e"`
	// Quantile is the share of requests that are to be within these bounds, above 0 and below 1.
	Quantile float64 `yaml:"quantile"`
	// Mode selects the need that counts: "throughput" is the forecast demand, "load" the engines' present work, and "both" the
	// greater need.
	Mode string `yaml:"mode"`
	// Forecast is the model of forecasts: constant, kalman, arima, seasonal, or auto, which uses at each horizon the one that was nearest
	// lately.
	Forecast string `yaml:"forecast"`
	// Headroom is the quantile of the forecast that must be served, above 0 and below 1: 0.5 is the expected demand. A higher one
	// needs more workers and misses targets less often. For targets of a quantile above 0.9 it is higher than this.
	Headroom float64 `yaml:"headroom"`
	// DownAfter is the time for which a pool keeps the most workers that it needed. A shorter time saves GPUs and starts
	// workers more often.
	DownAfter Duration `yaml:"downAfter"`
	// DrainTimeout is the longest time that a worker that is no longer needed may take to end its requests. Then it is stopped
	// all the same.
	DrainTimeout Duration `yaml:"drainTimeout"`
	// MinGPUs is the least number of GPUs of all workers that a plan asks for. 0 is no bound.
	MinGPUs int `yaml:"minGPUs"`
	// MaxGPUs is the greatest number of GPUs. If it does not suffice, all pools get a part of their need. 0 is no bound.
	MaxGPUs int `yaml:"maxGPUs"`
	// MaxWatts bounds the power of all workers whose gpu is set. 0 is no bound.
	MaxWatts float64 `yaml:"maxWatts"`
	// Warm is a file with earlier rates of requests per second, one a line for each interval, the newest last, with which forecasts
	// begin. It needs a single model.
	Warm string `yaml:"warm" file:"relative" default:"none" reload:"the planner"`
	// Log is a file to which every observation and its plan are appended as a line of JSON. "stator replay --plan" makes the plans again.
	// A file of 256 MiB is renamed by appending ".1", and replaces the last file of that name.
	Log string `yaml:"log" file:"relative" default:"none" reload:"the planner"`
	// Prometheus supplies demand instead of the routers on the bus: from the metrics of NVIDIA Dynamo's frontends.
	Prometheus Prometheus `yaml:"prometheus"`
}

// Prometheus is a server with the metrics of NVIDIA Dynamo's frontends.
type Prometheus struct {
	// URL is the server, such as "http://prometheus:9090". Without it demand comes from the routers on the bus.
	URL string `yaml:"url" default:"none" reload:"the planner"`
	// TokenFile is a file with a bearer token. It is read again at every request.
	TokenFile string `yaml:"tokenFile" file:"relative" default:"none" reload:"the planner"`
	// CAFile has the certificates that may have signed the server's, in PEM. Without it the system's certificates count.
	CAFile string `yaml:"caFile" file:"relative" default:"none" reload:"the planner"`
	// Namespace is Dynamo's namespace of the frontends' metrics.
	Namespace string `yaml:"namespace" default:"any" reload:"the planner"`
}

// The values of planner.connector.
const (
	ConnectorNone    = "none"
	ConnectorLocal   = "local"
	ConnectorVirtual = "virtual"
	// ConnectorKubernetes scales the targets of launches.
	ConnectorKubernetes = "kubernetes"
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
	v.oneOf(p.Connector, []string{ConnectorNone, ConnectorLocal, ConnectorVirtual, ConnectorKubernetes}, "planner.connector")
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

// Holds returns the longest time that a request may wait for an engine of the model that starts; 0 for a model without idleAfter.
func (m *Model) Holds() Duration {
	if m.IdleAfter == 0 {
		return 0
	}
	return m.Router.Queue.Hold
}

// checkIdle refuses an idleAfter that no planner carries out.
func (v *validator) checkIdle(c *Config) {
	for i := range c.Models {
		m, path := &c.Models[i], fmt.Sprintf("models[%d].idleAfter", i)
		if m.IdleAfter == 0 {
			continue
		}
		v.is(m.IdleAfter >= minInterval && m.IdleAfter <= maxHold, path, "must be 0s, or lie between %s and %s", minInterval, maxHold)
		v.is(c.Planner.Connector != ConnectorNone, path, "has no effect: set planner.connector to local, kubernetes or virtual")
		v.is(len(m.Launch) > 0 && len(m.Workers) == 0, path, "needs launches alone: no plan ends the workers that the file lists")
		for k := range m.Launch {
			v.is(m.Launch[k].Min == 0, path, "has no effect with a min of %d in launch[%d]: remove that", m.Launch[k].Min, k)
		}
	}
}

// checkScaled refuses bounds that no planner uses, and a planner that could scale nothing.
func (v *validator) checkScaled(c *Config) {
	v.is(c.Planner.Warm == "" || len(c.Models) == 1, "planner.warm", "needs a single model: its rates are those of one")
	scalable := false
	connector := c.Planner.Connector
	scales := connector == ConnectorLocal || connector == ConnectorKubernetes
	for i := range c.Models {
		for k := range c.Models[i].Launch {
			l := &c.Models[i].Launch[k]
			scalable = scalable || l.Min < l.Max
			v.is(l.Max == l.Count || scales, fmt.Sprintf("models[%d].launch[%d].max", i, k),
				"has no effect: set planner.connector to local or kubernetes")
		}
	}
	v.is(scalable || !scales, "planner.connector", "is %s, and no launch has a max above its min: there is nothing to scale", connector)
	v.is(!c.Planner.UpOnly || connector == ConnectorKubernetes, "planner.upOnly", "has no effect: set planner.connector to kubernetes")
	v.checkIdle(c)
	v.checkTargets(c)
}

// checkTargets refuses targets that no planner scales, and a planner of Kubernetes whose pools are not one target each.
func (v *validator) checkTargets(c *Config) {
	isOn := c.Planner.Connector == ConnectorKubernetes
	v.is(!isOn || c.Planner.Algorithm != plan.AlgorithmConfigured, "planner.algorithm",
		"must be sla or reactive with connector kubernetes: the number of the object is the configured one otherwise")
	for i := range c.Models {
		m := &c.Models[i]
		roles := map[string]bool{}
		for k := range m.Launch {
			l := &m.Launch[k]
			path := fmt.Sprintf("models[%d].launch[%d].target", i, k)
			if l.Target == "" {
				v.is(!isOn, path, "is required with planner.connector kubernetes, such as deployment/llama")
				continue
			}
			_, err := ParseTarget(l.Target)
			v.is(err == nil, path, "%v", err)
			v.is(isOn || c.Planner.Connector == ConnectorNone, path, "has no effect: set planner.connector to kubernetes")
			v.is(!roles[l.Role], path, "is a second one for role %s: a planner scales one object for each role of a model", l.Role)
			roles[l.Role] = true
		}
		v.is(!isOn || len(m.Workers) == 0 || len(m.Launch) == 0, fmt.Sprintf("models[%d].workers", i),
			"cannot be beside launches with planner.connector kubernetes: its workers are the pods of the targets")
	}
}

// isLaunched reports whether agents start engines of the model.
func (m *Model) isLaunched() bool {
	return slices.ContainsFunc(m.Launch, func(l Launch) bool { return l.Target == "" })
}

// Target names an object of Kubernetes that a planner scales.
type Target struct {
	// APIVersion is group and version, such as apps/v1.
	APIVersion, Kind, Name string
}

// targetKinds are the kinds that have a short form.
var targetKinds = map[string]Target{
	"deployment":      {APIVersion: "apps/v1", Kind: "Deployment"},
	"statefulset":     {APIVersion: "apps/v1", Kind: "StatefulSet"},
	"leaderworkerset": {APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet"},
}

// nameOfObject matches the names of objects, and groups.
var nameOfObject = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// kindOfObject matches kinds, and versions.
var kindOfObject = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,62}$`)

// ParseTarget reads the target of a launch: kind/name of a kind that has a short form, or group/version/kind/name.
func ParseTarget(text string) (t Target, err error) {
	parts := strings.Split(text, "/")
	switch len(parts) {
	case 2:
		t = targetKinds[strings.ToLower(parts[0])]
		t.Name = parts[1]
	case 4:
		if nameOfObject.MatchString(parts[0]) && kindOfObject.MatchString(parts[1]) && kindOfObject.MatchString(parts[2]) {
			t = Target{APIVersion: parts[0] + "/" + parts[1], Kind: parts[2], Name: parts[3]}
		}
	}
	if t.Kind == "" || !nameOfObject.MatchString(t.Name) {
		return Target{}, fmt.Errorf("is %.80q: write deployment/NAME, statefulset/NAME, leaderworkerset/NAME, or GROUP/VERSION/KIND/NAME, "+
			"such as nvidia.com/v1alpha1/DynamoGraphDeploymentScalingAdapter/NAME", text)
	}
	return t, nil
}
