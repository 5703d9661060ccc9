package doctor

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/metric"
)

// AgentPort is the admin port of an agent.
type AgentPort struct {
	// Address is the address of the port, for texts. Admin asks it.
	Address string
	Admin   *adminclient.Client
}

// agentSeen holds the answers of one agent's admin port.
type agentSeen struct {
	address string
	err     error // the port does not answer
	engines []agentEngine
	metrics metric.Samples
	config  *configSeen // nil if it follows no file
}

// agentEngine is one engine of /debug/agent.
type agentEngine struct {
	Worker              string      `json:"worker"`
	State               string      `json:"state"`
	StateSeconds        float64     `json:"state_seconds"`
	Failures            uint64      `json:"failures"`
	SecondsSinceFailure float64     `json:"seconds_since_failure"`
	LastError           string      `json:"last_error"`
	LastLine            string      `json:"last_line"`
	Remedy              string      `json:"remedy"` // if its output shows a common mistake
	Ranks               []agentRank `json:"ranks"`
}

// agentRank is one rank of an engine of /debug/agent.
type agentRank struct {
	Rank       int    `json:"rank"`
	CacheState string `json:"cache_state"`
	Reason     string `json:"reason"`
	// Source is nil until the engine is ready.
	Source *agentSource `json:"source"`
}

// agentSource has the agent's counts at one event socket.
type agentSource struct {
	Connected   bool   `json:"connected"`
	Malformed   uint64 `json:"malformed"`
	Unrecovered uint64 `json:"unrecovered"`
	LastError   string `json:"last_error"`
}

// askAgents asks the agents at these addresses, and the agent in the router's process if there is one.
func (o *observation) askAgents(ctx context.Context, ports []AgentPort) {
	asked := slices.Clip(ports)
	if o.router.err == nil {
		asked = append(asked, AgentPort{o.router.address, o.router.admin})
	}
	seen := make([]agentSeen, len(asked))
	AskEach(len(asked), maxAsked, func(i int) { seen[i] = askAgent(ctx, asked[i]) })

	o.agents = seen[:len(ports):len(ports)]
	if own := seen[len(ports):]; len(own) > 0 && own[0].err == nil {
		o.ownAgent = &own[0]
	}
}

// askAgent reads the pages of an agent's admin port.
func askAgent(ctx context.Context, port AgentPort) agentSeen {
	client, page := port.Admin.HTTP(), port.Admin.URL
	a := agentSeen{address: port.Address}
	_, a.err = getJSON(ctx, client, page("/debug/agent?format=json"), &a.engines)

	var status statusError
	if errors.As(a.err, &status) && status.status == http.StatusNotFound {
		a.err = errNoAgent
	}
	if a.err == nil {
		a.metrics, _ = readMetrics(ctx, client, page("/metrics"))
		a.config = askConfig(ctx, client, page)
	}
	return a
}

var errNoAgent = errors.New("no agent runs in that process")

// everyAgent returns the agents that were asked.
func (o *observation) everyAgent() []agentSeen {
	if o.ownAgent == nil {
		return o.agents
	}
	return append([]agentSeen{*o.ownAgent}, o.agents...)
}
