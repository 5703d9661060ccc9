package queue

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Order is the order of a class's requests that have the same strict priority and tenant.
type Order uint8

// The orders.
const (
	// FCFS serves first the request that came first. A head start counts as an earlier arrival.
	FCFS Order = iota
	// WSPT serves first the weighted shortest processing time: the largest (1 + head start in seconds) /
	// tokens to compute. It has the least mean wait. But long prompts wait longest, and as long as short
	// ones come, perhaps until their wait ends.
	WSPT
	// LCFS serves first the request that came last. A head start counts as a later arrival. Under overload
	// the newest requests are answered soon, and the oldest ones wait until their time is over: that suits
	// clients that give up early.
	LCFS
)

var orderNames = [...]string{"fcfs", "wspt", "lcfs"}

func (o Order) String() string {
	if int(o) < len(orderNames) {
		return orderNames[o]
	}
	return "unknown"
}

// ParseOrder reads an order's name; the empty name is FCFS.
func ParseOrder(s string) (Order, error) {
	for i, n := range orderNames {
		if s == n || s == "" {
			return Order(i), nil
		}
	}
	return 0, fmt.Errorf("order %q is unknown: use fcfs, lcfs or wspt", s)
}

// Limit bounds what waits. A zero field is no bound.
type Limit struct {
	// Requests, Tokens and CachedTokens are sums over waiting requests: their number, the tokens of their
	// prompts, and how many of these were cached when the requests came.
	Requests, Tokens, CachedTokens int
}

// Class is a share of the fleet.
type Class struct {
	// Name is the name that requests give; unique.
	Name string
	// Quantum is the number of prompt tokens to compute that the class may spend at its turn. Only the
	// ratio between classes matters. Default DefaultQuantum.
	Quantum int
	// Order is the order within the class.
	Order Order
	// Fair serves the tenants of the class alike, by tokens to compute.
	Fair bool
	// Limit bounds the waiting requests of the class.
	Limit Limit
}

// Config sets how waiting requests are ordered. The zero Config is one class without a name, first come
// first served.
type Config struct {
	// Classes are the classes. Requests that name none go to the first.
	Classes []Class
	// Limit bounds the whole queue. Default: DefaultRequests requests.
	Limit Limit
}

// Has reports whether there is a class of that name.
func (c *Config) Has(class string) bool {
	return slices.ContainsFunc(c.Classes, func(x Class) bool { return x.Name == class })
}

// Names returns the names of the classes.
func (c *Config) Names() []string {
	names := make([]string, len(c.Classes))
	for i := range c.Classes {
		names[i] = c.Classes[i].Name
	}
	return names
}

// DefaultRequests is the number of requests that may wait if no limit is set. DefaultQuantum is the
// quantum of a class that sets none, and MaxQuantum the largest one.
const (
	DefaultRequests = 16_384
	DefaultQuantum  = 512
	MaxQuantum      = 1 << 30
)

// MaxLanes bounds the restricted lanes of a queue. Each costs a check whenever a rank may have become free, and
// clients can name any number of sets of workers.
const MaxLanes = 1024

// MaxHeadStart bounds the head start that a priority gives.
const MaxHeadStart = 24 * time.Hour

func (c Config) withDefaults() Config {
	if c.Limit.Requests == 0 {
		c.Limit.Requests = DefaultRequests
	}
	classes := make([]Class, max(1, len(c.Classes)))
	copy(classes, c.Classes)
	for i := range classes {
		if classes[i].Quantum == 0 {
			classes[i].Quantum = DefaultQuantum
		}
	}
	c.Classes = classes
	return c
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	errs := []error{c.Limit.validate("limit")}
	seen := map[string]bool{}
	for i := range c.Classes {
		k := &c.Classes[i]
		errs = append(errs, k.Limit.validate("class "+k.Name))
		if k.Quantum < 0 || k.Quantum > MaxQuantum {
			errs = append(errs, fmt.Errorf("class %s: the quantum is %d: it must lie between 1 and %d", k.Name, k.Quantum, MaxQuantum))
		}
		if seen[k.Name] {
			errs = append(errs, fmt.Errorf("class %s is there twice", k.Name))
		}
		seen[k.Name] = true
	}
	return errors.Join(errs...)
}

func (l Limit) validate(where string) error {
	if l.Requests < 0 || l.Tokens < 0 || l.CachedTokens < 0 {
		return fmt.Errorf("%s: limits must not be negative", where)
	}
	return nil
}

// Full is the error of a request that cannot wait because a limit is reached.
type Full struct {
	// Class is empty for the limit of the whole queue.
	Class string
	// What is "requests", "tokens", "cached tokens" or "different sets of workers", and Limit how many of
	// them may wait.
	What  string
	Limit int
}

func (f *Full) Error() string {
	if f.Class == "" {
		return fmt.Sprintf("the queue is full: its limit is %d %s", f.Limit, f.What)
	}
	return fmt.Sprintf("the queue of class %s is full: its limit is %d %s", f.Class, f.Limit, f.What)
}

// reached returns the limit that the amount has reached; nil for none.
func (l *Limit) reached(class string, a *amount) *Full {
	for _, b := range [...]struct {
		what        string
		limit, have int
	}{{"requests", l.Requests, a.requests}, {"tokens", l.Tokens, a.tokens}, {"cached tokens", l.CachedTokens, a.cached}} {
		if b.limit > 0 && b.have >= b.limit {
			return &Full{Class: class, What: b.what, Limit: b.limit}
		}
	}
	return nil
}
