package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// Worker is one engine process. It is a value: the copy in a [Snapshot] never changes.
type Worker struct {
	// Name is unique in the fleet. It is "local" or "node.local", each part of [a-z0-9-]+: see [NodeOf].
	Name string
	// Model is the base model the worker serves.
	Model string
	Role  Role
	// Address is host:port of the engine's HTTP server, the host an IP literal. Envoy's endpoint and the
	// pick must spell it alike. Empty while Named does not resolve.
	Address string
	// Named is name:port if the worker is listed by a DNS name, from which Address is looked up. Empty for an IP.
	Named string
	// Engine is the kind of engine: vllm, sglang, trtllm, llamacpp, dynamo, sim or exec.
	Engine string
	// Epoch is new at each start of the engine process; 0 if the source of workers cannot distinguish starts.
	Epoch uint64
	// Ranks is the number of data-parallel ranks, each with its own KV cache. At least 1.
	Ranks int
	// Weight is the worker's share of the traffic that Envoy routes without a pick, and of the traffic of policies that count weights: 1 to
	// MaxWeight. In a snapshot it is the weight of the last plan, if the plan sets one.
	Weight uint32
	// State is the state that the source of the worker reports; in a snapshot, it also follows from the worker's
	// Health and from the last plan.
	State State
	// HealthPath is the path that each process asks for the engine's health, because no agent reports it. Empty for
	// the workers of agents, and for listed ones that are not asked.
	HealthPath string
	// KVEvents is the ZMQ endpoint of rank 0's events, and KVReplay the endpoint of their replay. Rank r has the same with its port
	// raised by r, or with _dpr after the path of a Unix socket, which only processes of the engine's host can open. Empty for an
	// engine that publishes no events.
	KVEvents string
	KVReplay string
	// Transfer is the way in which the worker takes part in transfers of KV caches. TransferAt is the host and port that requests name, for
	// transfers with an address: with p2p the address of rank 0; rank r has the same with its port raised by r.
	Transfer   Transfer
	TransferAt string
	// Blocks is the KV capacity of one rank in blocks; 0 is unknown.
	Blocks int
	// BlockSize is the engine's block size in tokens, as configured or in its lease; 0 if neither has it. See [Worker.TokensPerBlock].
	BlockSize int
	// MaxRequests is the number of requests that a rank runs at once, as configured or in its lease; 0 if neither has it. See
	// [Worker.Slots].
	MaxRequests int
	// Figures are the numbers that the engine reports, if this process asks it.
	Figures Figures
	// MaxModelLen is the most tokens of a prompt and its answer that the engine accepts; 0 is unknown.
	MaxModelLen int
	// Revision is the revision of the rollout that the worker belongs to, with the slice of a DisaggregatedSet behind it; empty for none.
	// Workers of two revisions exchange no KV caches.
	Revision string
	// Reported means that a kubelet reports whether the engine is ready, so that it is asked in doubt only.
	Reported bool
	// Taints are marks that requests may require or prefer. Some of them name the worker's place, and PlaceFrom their source.
	Taints    Taints
	PlaceFrom PlaceSource
	// Adapters are the LoRA adapters that the engine has loaded, as far as it lists them.
	Adapters Adapters
	// Leased means that the worker is on the bus, on which its agent reports its health. Each process sets it by
	// itself: it is not in the lease.
	Leased bool
	// Unleased is the time at which the worker's lease expired; zero while it is current, and for a worker that has none. Its engine
	// serves, but its agent is silent. It is not in the lease either.
	Unleased time.Time

	place      Place  // in a snapshot, the place that the taints name
	configured uint32 // in a snapshot, the weight that the source reports, if a plan sets another; see ConfiguredWeight
	withheld   bool   // see Withheld
	byOperator bool   // see DrainedByOperator
	undrained  State  // the state of a drained worker without the plan
}

// Site returns the site of the worker of a snapshot.
func (w *Worker) Site() Site { return Site{w.place, w.Revision} }

// Place returns the place of the worker of a snapshot.
func (w *Worker) Place() Place { return w.place }

// AskedPath returns the path at which the worker's engine is asked for its health; empty for one that is not asked.
func (w *Worker) AskedPath() string {
	if w.HealthPath == "" && w.Leased {
		return DefaultHealthPath
	}
	return w.HealthPath
}

// AskedInDoubt reports whether the engine is asked only while there is a doubt, because an agent or a kubelet reports its health
// otherwise.
func (w *Worker) AskedInDoubt() bool { return w.Reported || w.Leased && w.Unleased.IsZero() }

// ExchangesCaches reports whether the worker may exchange KV caches with workers of a revision: of the same one alone. A revision that is
// empty is not known, and may be any.
func (w *Worker) ExchangesCaches(revision string) bool {
	return oneRevision(w.Revision, revision)
}

func oneRevision(a, b string) bool { return a == "" || b == "" || a == b }

// DefaultHealthPath is the path of the health of vLLM, SGLang, llama.cpp and TensorRT-LLM.
const DefaultHealthPath = "/health"

// The path at which a frontend of Dynamo reports whether a worker serves a model, around the model's name.
const (
	readyBefore = "/v1/models/"
	readyAfter  = "/ready"
)

// ReadyPath returns the health path of one model.
func ReadyPath(model string) string { return readyBefore + url.PathEscape(model) + readyAfter }

// IsReadyPath reports whether path is the health path of one model. An answer of 404 there means that nothing serves the model.
func IsReadyPath(path string) bool {
	return strings.HasPrefix(path, readyBefore) && strings.HasSuffix(path, readyAfter)
}

// firstHealth is the health of a new epoch.
func (w *Worker) firstHealth() HealthState {
	if w.HealthPath != "" && !w.Reported || w.Address == "" {
		return HealthUnknown
	}
	return HealthReady
}

// Validate reports everything that is wrong with the worker.
func (w *Worker) Validate() error {
	var errs []error
	if !ValidWorkerName(w.Name) {
		errs = append(errs, fmt.Errorf("worker name %q must be \"local\" or \"node.local\", each part [a-z0-9-]+ and at most %d characters",
			w.Name, MaxName))
	}
	if w.Model == "" {
		errs = append(errs, fmt.Errorf("worker %s: model is empty", w.Name))
	}
	if _, _, ok := SplitName(w.Named); w.Named != "" && !ok {
		errs = append(errs, fmt.Errorf("worker %s: address %q must be a DNS name and a port, such as engine-0:8000", w.Name, w.Named))
	}
	if _, err := netip.ParseAddrPort(w.Address); err != nil && (w.Named == "" || w.Address != "") {
		errs = append(errs, fmt.Errorf("worker %s: address %q must be an IP and a port, such as 10.0.0.1:8000", w.Name, w.Address))
	}

	if w.Ranks < 1 || w.Ranks > MaxRanks {
		errs = append(errs, fmt.Errorf("worker %s: ranks is %d: it must lie between 1 and %d", w.Name, w.Ranks, MaxRanks))
	}

	if w.Weight > MaxWeight {
		errs = append(errs, fmt.Errorf("worker %s: weight is %d: it must lie between 1 and %d", w.Name, w.Weight, MaxWeight))
	}
	if again, err := NewTaints(w.Taints.Names()); err != nil || again != w.Taints {
		errs = append(errs, fmt.Errorf("worker %s: taints %q: %w", w.Name, w.Taints, cmp.Or(err, errTaints)))
	}
	if err := w.ValidateTransfer(); err != nil {
		errs = append(errs, err)
	}
	if err := w.Adapters.validate(); err != nil {
		errs = append(errs, fmt.Errorf("worker %s: %w", w.Name, err))
	}
	return errors.Join(errs...)
}

var errTaints = errors.New("they must be sorted and no two equal")

// MaxWeight bounds a worker's share of unpicked traffic, and DefaultWeight is the share of one that sets
// none.
const (
	MaxWeight     = 1000
	DefaultWeight = 1
)

// MaxContext bounds the context length of a model or an engine, in tokens.
const MaxContext = 1 << 30

// BlocksOf returns the number of blocks of the given size that a KV cache holds; 0, unknown, if either argument is.
func BlocksOf(tokens, blockSize int) int {
	if tokens <= 0 || blockSize <= 0 {
		return 0
	}
	return tokens / blockSize
}

// MaxRanks bounds the data-parallel ranks of one worker.
const MaxRanks = 1024

// MaxName bounds the characters of a name of one part.
const MaxName = 63

// ValidName reports whether s is a name of one part: [a-z0-9-]+, at most 63 characters. Nodes, clusters and
// replicas have such names, and so have workers without a node.
func ValidName(s string) bool {
	if s == "" || len(s) > MaxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// ValidWorkerName reports whether s can name a worker: a name of one part, or the names of its node and of the worker
// there, with a dot between them.
func ValidWorkerName(s string) bool {
	node, local, hasNode := strings.Cut(s, ".")
	return ValidName(node) && (!hasNode || ValidName(local))
}

// NodeOf returns the node in a worker's name; empty for a worker without one. A dot separates the parts of
// NATS subjects and keys, so the bus can confine an agent to the workers of its node.
func NodeOf(worker string) string {
	node, _, hasNode := strings.Cut(worker, ".")
	if !hasNode {
		return ""
	}
	return node
}

// WorkerName returns the name of a worker on a node; an empty node has none in the name.
func WorkerName(node, local string) string {
	if node == "" {
		return local
	}
	return node + "." + local
}
