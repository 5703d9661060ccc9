package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route"
)

// Bounds of values whose packages have none.
const (
	minIndexBytes   = 1 << 20
	minDriftTokens  = 1000
	minMemoryBytes  = 1 << 20
	noMemory        = -1 // prompts.memoryBytes: off
	minLogBytes     = 1 << 16
	maxHashEvery    = 1 << 16
	minLease        = Duration(time.Second)
	minBodyBytes    = 1 << 10
	maxBodiesBytes  = 1 << 40
	minHeapBytes    = 64 << 20 // an Envoy without requests has less
	minDecision     = Duration(10 * time.Millisecond)
	minIdle         = Duration(time.Second)
	minWait         = Duration(10 * time.Millisecond)
	maxModelName    = 256
	maxAdapterPath  = 4096
	maxBlockSize    = 4096
	minCanary       = Duration(time.Second)
	maxContext      = fleet.MaxContext
	maxMigrations   = 100
	maxPrefillShare = 1000
	maxCount        = 256
	maxExpected     = 1024 // as many as routers keep

	// waitMargin is the time for which Envoy must keep a request beyond the longest wait: the answer that
	// ends the wait has to reach it before.
	waitMargin = Duration(10 * time.Second)
)

// Validate reports everything that is wrong, each problem with its path.
func (c *Config) Validate() error {
	var v validator
	v.is(c.APIVersion == APIVersion, "apiVersion", "must be %q", APIVersion)
	v.is(c.Kind == Kind, "kind", "must be %q", Kind)
	v.gateway(&c.Gateway)
	v.is(len(c.Models) <= 1 || !c.Gateway.FiltersAffinity(), "gateway.affinityFilter",
		"has no effect with several models: Envoy refuses requests without a decision")
	v.is(!c.FailsClosed() || !c.Gateway.FiltersAffinity(), "gateway.affinityFilter",
		"has no effect with transfers of KV caches or gateway.tenantHeader: Envoy refuses requests without a decision")
	v.is(!c.Gateway.Sidecars || !c.Migrates(), "gateway.sidecars",
		"cannot be true with models[].migration: sidecars get requests from Envoy alone")
	v.is(c.Index.MaxBytes >= minIndexBytes, "index.maxBytes", "must be at least %d", minIndexBytes)
	v.is(c.Index.DriftTokens >= minDriftTokens, "index.driftTokens", "must be at least %d", minDriftTokens)
	v.is(c.Prompts.MemoryBytes >= minMemoryBytes || c.Prompts.MemoryBytes == noMemory, "prompts.memoryBytes",
		"must be at least %d, or %d for none", minMemoryBytes, noMemory)
	v.is(c.Decisions.LogBytes >= minLogBytes, "decisions.logBytes", "must be at least %d", minLogBytes)
	v.is(c.Decisions.LinesPerSecond >= 0 && c.Decisions.LinesPerSecond <= 1000, "decisions.linesPerSecond", "must lie between 0 and 1000")
	v.is(c.Decisions.HashEvery >= 1 && c.Decisions.HashEvery <= maxHashEvery, "decisions.hashEvery",
		"must lie between 1 and %d", maxHashEvery)
	v.is(fleet.ValidName(c.Bus.Cluster), "bus.cluster", "must match [a-z0-9-]+ and have at most 63 characters")
	v.is(c.Bus.LeaseTTL >= minLease, "bus.leaseTTL", "must be at least %s", minLease)

	v.tracing(&c.Tracing)
	v.bus(&c.Bus)
	v.engineTLS(&c.EngineTLS)
	v.planner(&c.Planner)
	for key, n := range map[string]int{
		"routers": c.Expected.Routers, "controlPlanes": c.Expected.ControlPlanes,
		"planners": c.Expected.Planners, "stores": c.Expected.Stores,
	} {
		v.is(n >= 0 && n <= maxExpected, "expected."+key, "must lie between 0 and %d", maxExpected)
	}

	names, workers := map[string]string{}, map[string]string{}
	addresses, emitters := map[string]string{}, map[string]string{}
	for i := range c.Models {
		v.model(&c.Models[i], fmt.Sprintf("models[%d]", i), names, workers, addresses)
		v.emitters(&c.Models[i], fmt.Sprintf("models[%d].emitters", i), emitters)
		wait, hold := c.Models[i].Router.Queue.MaxWait, c.Models[i].Holds()
		v.is(hold == 0 || hold+waitMargin <= c.Gateway.IdleTimeout, fmt.Sprintf("models[%d].router.queue.hold", i),
			"is %s: it must be at least %s less than gateway.idleTimeout, which is %s", hold, waitMargin, c.Gateway.IdleTimeout)
		if c.Models[i].isSplit() {
			longest := max(wait, hold) + Duration(route.PrefillTimeout)
			v.is(longest+waitMargin <= c.Gateway.IdleTimeout, "gateway.idleTimeout",
				"is %s: models[%d] has prefill workers, so it must be at least %s", c.Gateway.IdleTimeout, i, longest+waitMargin)
			continue
		}
		v.is(wait == 0 || wait+waitMargin <= c.Gateway.IdleTimeout, fmt.Sprintf("models[%d].router.queue.maxWait", i),
			"is %s: it must be at least %s less than gateway.idleTimeout, which is %s", wait, waitMargin, c.Gateway.IdleTimeout)
	}
	v.checkScaled(c)
	return errors.Join(v.errs...)
}

type validator struct{ errs []error }

func (v *validator) is(ok bool, path, format string, args ...any) {
	if !ok {
		v.errs = append(v.errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
}

func (v *validator) oneOf(s string, of []string, path string) {
	v.is(slices.Contains(of, s), path, "is %q: use %s or %s", s, strings.Join(of[:len(of)-1], ", "), of[len(of)-1])
}

// engine checks the name of a kind of engine for which is returns true.
func (v *validator) engine(name string, is func(*engines.Kind) bool, path string) {
	kind, ok := engines.Named(name)
	v.is(ok && is(kind), path+".engine", "is %q: use %s", name, engines.Choices(is))
}

// owned adds the problems that the owner of some values found, which begin with the key below path.
func (v *validator) owned(err error, path string) {
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		v.errs = append(v.errs, errors.New(path+"."+strings.TrimSuffix(line, "\n")))
	}
}

func (v *validator) name(name, path string) {
	v.is(fleet.ValidName(name), path+".name", "is %q: it must match [a-z0-9-]+ and have at most 63 characters", name)
}

// role checks the role of a launch or a worker.
func (v *validator) role(name, path string) {
	role, err := fleet.ParseRole(name)
	switch {
	case err != nil || name == "":
		v.is(false, path+".role", "is %q: use aggregated, prefill or decode", name)
	case role == fleet.Encode:
		v.is(false, path+".role", "%s %s", name, noEffect)
	}
}

func (v *validator) taints(names []string, path string) {
	_, err := fleet.NewTaints(names)
	v.is(err == nil, path, "%v", err)
}

// tracing checks the receiver of spans.
func (v *validator) tracing(t *Tracing) {
	v.is(t.Ratio >= 0 && t.Ratio <= 1, "tracing.ratio", "must lie between 0 and 1")
	v.is(t.SlowerThan >= 0, "tracing.slowerThan", "must not be negative")
	if t.Endpoint == "" {
		return
	}
	u, err := url.Parse(t.Endpoint)
	ok := err == nil && slices.Contains([]string{"http", "https", "grpc"}, u.Scheme) && u.Host != "" && u.RawQuery == "" && u.User == nil &&
		(u.Scheme != "grpc" || u.Port() != "" && u.Path == "")
	v.is(ok, "tracing.endpoint", "is not the address of a receiver, such as http://127.0.0.1:4318 or grpc://127.0.0.1:4317")
}
