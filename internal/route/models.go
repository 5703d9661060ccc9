package route

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/queue"
)

// Preparer turns a parsed request into tokens. A *prompt.Model is one.
type Preparer interface {
	Prepare(req *prompt.Request, dst *prompt.Prompt) error
}

// ModelConfig is how requests for one model are routed. It must not change once it is set.
type ModelConfig struct {
	// Prompt prepares the model's prompts. Nil: requests are routed by load alone.
	Prompt Preparer
	// Pool is the model that the fleet's workers are listed under; empty means the name that
	// clients use. An adapter's pool is its base model.
	Pool string
	// Adapter is the name engines give a LoRA adapter; empty for a base model. It separates
	// the adapter's cache from its base model's.
	Adapter string
	// BlockSize is in tokens and must be the engines' own, or nothing ever overlaps. Default 16.
	BlockSize int
	// ContextLength is for listings; 0 is unknown.
	ContextLength int
	// Policy, Temperature and Cost are those of every role that has no other; see [Choice].
	Policy      string
	Temperature float64
	Cost        cost.Function
	// Roles are how workers of single roles are chosen, where that differs.
	Roles map[fleet.Role]Choice
	// Busy says when a rank takes no more requests. All models of a pool must have the same.
	Busy Busy
	// Queue is how requests wait while all ranks that may take them are busy; nil: they are refused.
	// Models of one pool wait in one queue, and must have the same.
	Queue *queue.Config
	// MaxWait is how long a request may wait; default 30 s.
	MaxWait time.Duration
}

// Choice is how one of several workers is chosen.
type Choice struct {
	// Policy is one of pick.Names; empty means kv.
	Policy string
	// Temperature spreads the kv policy's picks: 0, the default, always takes the lowest cost.
	Temperature float64
	// Cost judges the candidates; nil means cost.Default().
	Cost cost.Function
}

// choice is a Choice made ready.
type choice struct {
	Choice
	policy pick.Policy
}

func newChoice(c Choice) (*choice, error) {
	if c.Policy == "" {
		c.Policy = pick.KV
	}
	if c.Cost == nil {
		c.Cost = cost.Default()
	}
	policy, err := pick.New(c.Policy, c.Temperature)
	return &choice{c, policy}, errors.Join(err, c.Cost.Validate())
}

// model is a ModelConfig made ready.
type model struct {
	ModelConfig
	name    string
	all     choice
	roles   map[fleet.Role]*choice
	waiting *waiting // nil where none waits
}

// choice is how workers of a role are chosen.
func (m *model) choice(role fleet.Role) *choice {
	if c := m.roles[role]; c != nil {
		return c
	}
	return &m.all
}

// keep takes over the policies of the model before, where they are the same: a reload does not begin
// their round again.
func (m *model) keep(old *model) {
	m.all.keep(&old.all)
	for role, c := range m.roles {
		if before := old.roles[role]; before != nil {
			c.keep(before)
		}
	}
}

func (c *choice) keep(old *choice) {
	if c.Policy == old.Policy && c.Temperature == old.Temperature {
		c.policy = old.policy
	}
}

// SetModels replaces what is served: decisions that have begun use the old models, all
// others the new. On an error, which names everything that is wrong, nothing changes.
func (r *Router) SetModels(models map[string]*ModelConfig) error {
	ready := make(map[string]*model, len(models))
	var errs []error
	for name, cfg := range models {
		m, err := newModel(name, *cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("model %s: %w", name, err))
		}
		if old := (*r.models.Load())[name]; old != nil {
			m.keep(old)
		}
		ready[name] = m
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.setQueues(ready)
	r.models.Store(&ready)
	return nil
}

func newModel(name string, cfg ModelConfig) (*model, error) {
	m := &model{ModelConfig: cfg, name: name}
	if m.Pool == "" {
		m.Pool = name
	}
	if m.BlockSize == 0 {
		m.BlockSize = 16
	}
	all, err := newChoice(Choice{cfg.Policy, cfg.Temperature, cfg.Cost})
	errs := []error{err}
	m.all, m.roles = *all, make(map[fleet.Role]*choice, len(cfg.Roles))
	for role, c := range cfg.Roles {
		if m.roles[role], err = newChoice(c); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", role, err))
		}
	}
	if m.BlockSize < 0 || m.BlockSize > 1<<16 {
		errs = append(errs, fmt.Errorf("blockSize is %d: it must lie between 1 and 65536", m.BlockSize))
	}
	if m.MaxWait == 0 {
		m.MaxWait = 30 * time.Second
	}
	if m.Queue != nil {
		errs = append(errs, m.Queue.Validate())
	}
	return m, errors.Join(append(errs, m.Busy.Validate())...)
}

// seed is that of the block hashes of one request. Tokens do not tell one image from another,
// nor where it stands among them, so a prompt with media shares blocks only with prompts of the
// same media: that may miss what is cached, and never names what is not.
func (m *model) seed(salt string, media [][16]byte) uint64 {
	seed := blockhash.Seed(m.Adapter, salt)
	for _, hash := range media {
		seed = xxh3.HashSeed(hash[:], seed)
	}
	return seed
}

// ModelStatus is one line of the model listing.
type ModelStatus struct {
	Name, Pool, Adapter string
	ContextLength       int
	// Workers counts those of the pool in any state; Ready those that take requests.
	Workers, Ready int
}

// Models lists what is served, sorted by name.
func (r *Router) Models() []ModelStatus {
	snap := r.fleet.Snapshot()
	var list []ModelStatus
	for name, m := range *r.models.Load() {
		s := ModelStatus{Name: name, Pool: m.Pool, Adapter: m.Adapter, ContextLength: m.ContextLength}
		for _, rank := range snap.Pool(m.Pool, fleet.Aggregated) {
			if rank.Number != 0 {
				continue
			}
			s.Workers++
			if rank.Worker.State == fleet.Ready {
				s.Ready++
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b ModelStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}
