package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Splits reports whether a model has prefill and decode workers, whose requests may need the relay.
func (c *Config) Splits() bool {
	return slices.ContainsFunc(c.Models, func(m Model) bool { return m.isSplit() }) ||
		slices.ContainsFunc(c.Found, func(w fleet.Worker) bool { return w.Role != fleet.Aggregated })
}

// UsesRelay reports whether requests may go to the relay: to prefill and decode workers, streams that are continued, and requests with
// the hint of speculative prefill.
func (c *Config) UsesRelay() bool { return c.Splits() || c.Migrates() || c.Gateway.TakesHints() }

// Migrates reports whether streams of a model are continued at other workers.
func (c *Config) Migrates() bool {
	return slices.ContainsFunc(c.Models, func(m Model) bool { return m.Migration.Limit > 0 })
}

// FailsClosed reports whether no request may reach a worker without a router's decision: routers remove members of transfers, and
// salt the prompts of tenants.
func (c *Config) FailsClosed() bool {
	return c.Gateway.TenantHeader != "" || c.Splits() || slices.ContainsFunc(c.Models, func(m Model) bool { return m.hasTransfers() })
}

// hasTransfers reports whether an engine of the model reads members of transfers, as far as the configuration shows it: it has a
// role or a KV connector.
func (m *Model) hasTransfers() bool {
	listed := func(w Worker) bool { return w.Transfer != fleet.NoTransfer.String() }
	launched := func(l Launch) bool {
		c, err := ReadConnectors(l.Args)
		return engines.Of(l.Engine).Connectors && (err != nil || len(c.Names) > 0 || m.KV.HostBytes > 0 && c.UseStore())
	}
	return m.isSplit() || slices.ContainsFunc(m.Workers, listed) || slices.ContainsFunc(m.Launch, launched)
}

// isHalf reports whether the worker serves a half of each request.
func (w *Worker) isHalf() bool {
	return w.Role == fleet.Prefill.String() || w.Role == fleet.Decode.String()
}

// fillTransfer sets the fields that follow from the worker's engine, role and address.
func (w *Worker) fillTransfer() {
	if w.Transfer == notSetText {
		w.Transfer = fleet.NoTransfer.String()
		if w.isHalf() {
			w.Transfer = engines.Of(w.Engine).Transfer.String()
		}
	}
	if w.Transfer == fleet.TransferBootstrap.String() && w.TransferAddress == "" {
		colon := strings.LastIndexByte(w.Address, ':')
		if colon > 0 { // otherwise the address is refused
			w.TransferAddress = w.Address[:colon+1] + strconv.Itoa(fleet.DefaultBootstrapPort)
		}
	}
}

// transfers returns the names of the transfers of the model's prefill and decode workers, sorted.
func (m *Model) transfers() []string {
	var kinds []string
	for i := range m.Workers {
		if w := &m.Workers[i]; w.isHalf() {
			kinds = append(kinds, w.Transfer)
		}
	}
	for i := range m.Launch {
		if kind := m.Launch[i].transfer(); kind != "" {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// transfer checks how a listed worker takes part in transfers of KV caches.
func (v *validator) transfer(w *Worker, path string) {
	t, err := fleet.ParseTransfer(w.Transfer)
	v.is(err == nil, path+".transfer", "%v", err)
	if err != nil {
		return
	}

	v.is(!w.isHalf() || t != fleet.NoTransfer, path+".role",
		"is %s, which engine %s cannot have without a transfer of KV caches: set transfer, or use engine %s",
		w.Role, w.Engine, engines.Choices((*engines.Kind).Transfers))
	if !t.HasAddress() {
		v.is(w.TransferAddress == "", path+".transferAddress", "has no effect with transfer %s", t)
		return
	}
	_, err = netip.ParseAddrPort(w.TransferAddress)
	_, _, isName := fleet.SplitName(w.TransferAddress)
	v.is(err == nil || isName, path+".transferAddress",
		"is %q: use the host and port that the decode worker connects to, such as 10.0.0.1:8998", w.TransferAddress)
}
