package serving

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
)

// Preparer turns a parsed request into tokens. A *prompt.Model is one.
type Preparer interface {
	Prepare(req *prompt.Request, dst *prompt.Prompt) error
}

// DefaultBlockSize is the block size of a model that sets none, in tokens.
const DefaultBlockSize = fleet.DefaultBlockSize

const maxBlockSize = 1 << 16 // tokens

// Config configures the routing of requests for one model. It must not change once it is set.
type Config struct {
	// Prompt prepares the model's prompts. Nil: requests are routed by load alone.
	Prompt Preparer
	// Pool is the model that the fleet's workers are listed under; empty means the name that
	// clients use. An adapter's pool is its base model.
	Pool string
	// Adapter is the name engines give a LoRA adapter; empty for a base model. It separates
	// the adapter's cache from its base model's.
	Adapter string
	// Parent is the name of an adapter's base model, for listings; empty for a base model.
	Parent string
	// Found is true for an adapter that is not configured: an engine lists it. Workers whose adapters are unknown do not
	// have it.
	Found bool
	// Loadable is true for a configured adapter that route.Config.Missing can have loaded, by engines that list their adapters.
	Loadable bool
	// BlockSize is in tokens, and must divide the engines' own block sizes. Default 16.
	BlockSize int
	// CoarseSizes are the block sizes of engines that have larger blocks: multiples of BlockSize, in rising order.
	CoarseSizes []int
	// ContextLength is for listings; 0 is unknown.
	ContextLength int
	// Policy, Temperature and Cost apply to every role that has no others; see [Choice].
	Policy      string
	Temperature float64
	Cost        cost.Function
	// Roles override Policy, Temperature and Cost for the workers of one role.
	Roles map[fleet.Role]Choice
	// Prefill sets the workers that compute prompts, if the model has prefill and decode workers: PrefillAuto,
	// the default, compares costs.
	Prefill Prefill
	// Busy sets when a rank takes no more requests. All models of a pool must have the same Busy.
	Busy Busy
	// Queue sets how requests wait while all ranks that may take them are busy, or none is ready. Nil: they are refused.
	// Models of one pool share one queue, and must have the same Queue.
	Queue *queue.Config
	// MaxWait bounds the wait of a request for a rank that is not busy. 0: no request waits for that.
	MaxWait time.Duration
	// Hold bounds the wait of a request for the start of a worker: see route.Config.Starts. 0: no request waits for that. A Queue needs
	// MaxWait or Hold.
	Hold time.Duration
	// Store is true if the engines share a store of KV blocks, which can pin a prompt's blocks.
	Store bool
	// Programs holds back steps of agents' programs for whose contexts the caches have no room: see package programs. It needs a Queue.
	Programs bool
}

// Choice configures the choice among several workers.
type Choice struct {
	// Policy is one of pick.Names; empty means kv.
	Policy string
	// Temperature spreads the kv policy's picks: 0, the default, always takes the lowest cost.
	Temperature float64
	// Cost judges the candidates; nil means cost.Default().
	Cost cost.Function
	// Chooser replaces the policy that Policy names; nil means that one. Simulations of other routers set it. Policy is
	// then a label, by default ChooserName. A chooser that keeps state may be called more than once for a request whose
	// booking comes too late, see pick.Policy. A simulation decides one request at a time, so there it is called once.
	Chooser pick.Policy
}

// ChooserName is the name of the policy of a Choice with a Chooser.
const ChooserName = "chooser"

// choice is a Choice with its policy.
type choice struct {
	Choice
	Picker pick.Policy
}

// newChoice fills in the defaults of a choice and makes its policy.
func newChoice(c Choice) (*choice, error) {
	if c.Cost == nil {
		c.Cost = cost.Default()
	}
	if c.Chooser != nil {
		c.Policy = cmp.Or(c.Policy, ChooserName)
		return &choice{c, c.Chooser}, c.Cost.Validate()
	}

	c.Policy = cmp.Or(c.Policy, pick.KV)
	policy, err := pick.New(c.Policy, c.Temperature)
	return &choice{c, policy}, errors.Join(err, c.Cost.Validate())
}

// Model is a ModelConfig with its defaults, and policies. It never changes once it is served.
type Model struct {
	Config
	Name  string
	all   choice
	roles map[fleet.Role]*choice
}

// Choice returns how workers of a role are chosen.
func (m *Model) Choice(role fleet.Role) *choice {
	if c := m.roles[role]; c != nil {
		return c
	}
	return &m.all
}

// KeepPolicies takes over the policies of the model's old configuration if they are the same, so that a reload does not
// restart the round of round-robin.
func (m *Model) KeepPolicies(old *Model) {
	m.all.keepPolicy(&old.all)
	for role, c := range m.roles {
		if before := old.roles[role]; before != nil {
			c.keepPolicy(before)
		}
	}
}

// keepPolicy takes over the policy of the role's old choice if both would make the same policy. The
// policy holds the state: the counter of round-robin.
func (c *choice) keepPolicy(old *choice) {
	if c.Chooser == nil && old.Chooser == nil && c.Policy == old.Policy && c.Temperature == old.Temperature {
		c.Picker = old.Picker
	}
}

// New fills in the defaults of a configuration. It returns a model even if the configuration is wrong, so
// that all problems are found.
func New(name string, cfg Config) (*Model, error) {
	m := &Model{Config: cfg, Name: name}
	if m.Pool == "" {
		m.Pool = name
	}
	if m.Prefill == "" {
		m.Prefill = PrefillAuto
	}
	if m.BlockSize == 0 {
		m.BlockSize = DefaultBlockSize
	}

	all, err := newChoice(Choice{Policy: cfg.Policy, Temperature: cfg.Temperature, Cost: cfg.Cost})
	errs := []error{err}
	m.all, m.roles = *all, make(map[fleet.Role]*choice, len(cfg.Roles))
	for role, c := range cfg.Roles {
		m.roles[role], err = newChoice(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", role, err))
		}
	}

	if !slices.Contains(Prefills(), string(m.Prefill)) {
		errs = append(errs, fmt.Errorf("prefill is %q: use %s", m.Prefill, strings.Join(Prefills(), ", ")))
	}
	if m.BlockSize < 0 || m.BlockSize > maxBlockSize {
		errs = append(errs, fmt.Errorf("blockSize is %d: it must lie between 1 and %d", m.BlockSize, maxBlockSize))
	}
	for _, size := range m.CoarseSizes {
		if size <= m.BlockSize || size > maxBlockSize || size%max(1, m.BlockSize) != 0 {
			errs = append(errs, fmt.Errorf("a block size of engines is %d: it must be a multiple of blockSize, %d", size, m.BlockSize))
		}
	}
	if m.Queue != nil && m.MaxWait <= 0 && m.Hold <= 0 {
		errs = append(errs, errors.New("the queue needs a MaxWait or a Hold of more than 0"))
	}
	if m.Queue != nil {
		errs = append(errs, m.Queue.Validate())
	}
	if err := m.Busy.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("busy: %w", err))
	}
	return m, errors.Join(errs...)
}

// BlocksIn returns how many of the model's blocks are in a block of a worker. It is 1 for a worker whose size is unknown or not among the
// model's sizes.
func (m *Model) BlocksIn(w *fleet.Worker) int {
	if size := w.TokensPerBlock(); size > m.BlockSize && slices.Contains(m.CoarseSizes, size) {
		return size / m.BlockSize
	}
	return 1
}

// Seed is the seed of a request's block hashes. Two images have the same tokens, so a prompt with media
// shares blocks only with prompts that have the same media. That may miss a cached block, and never
// finds one that is not cached.
func (m *Model) Seed(salt string, media [][16]byte) uint64 {
	seed := blockhash.Seed(m.Adapter, salt)
	for _, hash := range media {
		seed = xxh3.HashSeed(hash[:], seed)
	}
	return seed
}

// Any serves requests that name no model on a path that is not parsed.
var Any = &Model{
	Config: Config{BlockSize: DefaultBlockSize},
	all:    choice{Choice{Policy: pick.LeastLoaded, Cost: cost.Default()}, must(pick.New(pick.LeastLoaded, 0))},
}

func must(p pick.Policy, err error) pick.Policy {
	if err != nil {
		panic(err) // pick.LeastLoaded exists, so this cannot happen
	}
	return p
}

// Prefill sets the workers that compute the prompts of a model with prefill and decode workers.
type Prefill string

// The values. A request may ask for one of the last two.
const (
	PrefillAuto   Prefill = "auto"               // by the way that costs less
	PrefillRemote Prefill = openai.PrefillRemote // on a prefill worker, if one is ready and free
	PrefillLocal  Prefill = openai.PrefillLocal  // on the decode worker
)

// Prefills are the names of all values.
func Prefills() []string {
	return []string{string(PrefillAuto), string(PrefillRemote), string(PrefillLocal)}
}
