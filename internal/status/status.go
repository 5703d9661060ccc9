// Package status shows a whole fleet in a few tables: its processes, Envoys, workers, plans and stores of KV blocks.
//
// It works in three steps, as package doctor does. [Read] asks the admin ports of all processes at the same time. A pure function joins
// the answers: a control plane knows what an Envoy has accepted, a router the state of a cache, an agent how many batches of events the
// router lacks. [Status.Print] writes the tables.
//
// A process serves the pages of the parts that it runs, and so its parts are found. Names in the pages come from engines,
// Envoys and clients. They are printed as one line of printable text each.
package status

import (
	"time"

	"github.com/stator-project/stator/doctor"
	"github.com/stator-project/stator/internal/adminclient"
)

// Timeout bounds one request to an admin port.
const Timeout = 5 * time.Second

// Port is the admin port of one process. Address is for texts.
type Port struct {
	Address string
	Admin   *adminclient.Client
}

// Status is the state of a fleet, by the pages of its processes. Lists are never null.
type Status struct {
	Parts    []Part    `json:"parts"`
	Envoys   []Envoy   `json:"envoys"`
	Workers  []Worker  `json:"workers"`
	Emitters []Emitter `json:"emitters"`
	Pools    []Pool    `json:"pools"`
	Stores   []Store   `json:"stores"`
	// Findings are the faults: first those of these tables, then those that the caller adds.
	Findings []doctor.Finding `json:"findings"`
}

// Part is one process.
type Part struct {
	Address string   `json:"address"`
	Runs    []string `json:"runs"` // of router, control plane, planner, agent and store
	Version string   `json:"version"`
	// State is "ready", "degraded", "not ready" or "silent", and Reason why it is not ready.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Bus is "connected", "away", or empty for a process without a bus. Config is the state of the configuration file: "in force",
	// "refused", "restart needed", or empty for a process that follows none.
	Bus    string `json:"bus,omitempty"`
	Config string `json:"config,omitempty"`
	// Exact counts the ranks whose caches this router knows exactly, of Ranks; both are 0 for other processes.
	Exact int `json:"exact_ranks"`
	Ranks int `json:"ranks"`
}

// The states of an Envoy's resources.
const (
	Synced  = "SYNCED"   // the newest version is accepted
	Stale   = "STALE"    // the newest version is refused, or not accepted yet
	NotSent = "NOT SENT" // the Envoy has not asked for them
)

// Envoy is one Envoy. Its resources are empty for one that gets its configuration from elsewhere.
type Envoy struct {
	Name      string `json:"name"`
	Version   string `json:"version,omitempty"`
	Listeners string `json:"listeners,omitempty"`
	Routes    string `json:"routes,omitempty"`
	Clusters  string `json:"clusters,omitempty"`
	Endpoints string `json:"endpoints,omitempty"`
	// EndsBy is how routers learn that its requests have ended, such as "access_log"; empty before the first one.
	EndsBy string `json:"ends_by,omitempty"`
}

// Worker is one rank of an engine. Lag is the number of batches of events that its agent has and the router lacks; nil if that is not
// known.
type Worker struct {
	Name    string   `json:"name"`
	Rank    int      `json:"rank"`
	Model   string   `json:"model"`
	Role    string   `json:"role"`
	State   string   `json:"state"`
	Health  string   `json:"health"`
	Place   string   `json:"place,omitempty"` // such as "zone=a rack=7"; empty if it is not known
	Events  string   `json:"events"`          // "connected", "cut off", or empty if no agent that was asked reads them
	Cache   string   `json:"cache"`           // the worst state that a router has of it
	Reason  string   `json:"cache_reason,omitempty"`
	Lag     *uint64  `json:"lag_batches"`
	Blocks  int      `json:"blocks"`
	Booked  int64    `json:"booked_requests"`
	Running *int     `json:"reported_running"`
	Waiting *int     `json:"reported_waiting"`
	KVUsage *float64 `json:"reported_kv_usage"`
}

// Emitter is a cache outside engines whose events routers read.
type Emitter struct {
	Name    string `json:"name"`
	Model   string `json:"model"`
	Address string `json:"address"` // the endpoint of its events
	Place   string `json:"place"`   // "cluster", "node NAME", or a number of workers
	// State is the worst state of its cache in a router, or "cut off" while one has no connection to it. Blocks counts the blocks
	// there.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Blocks int    `json:"blocks"`
}

// Pool is one pool of the plan of the planner that leads.
type Pool struct {
	Model    string `json:"model"`
	Role     string `json:"role"`
	Replicas int    `json:"replicas"`
	Ready    int    `json:"ready"`
	Reason   string `json:"reason"`
}

// Store is one tier of a store of KV blocks. Room is 0 for a tier that is bounded by bytes.
type Store struct {
	Address string `json:"address"` // of the admin port
	Model   string `json:"model"`
	Tier    string `json:"tier"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Blocks  int    `json:"blocks"`
	Room    int    `json:"room"`
}
