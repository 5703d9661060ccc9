package queue

import (
	"errors"
	"fmt"
	"time"
)

// Order is who goes first among equals of a class.
type Order uint8

// The orders.
const (
	// FCFS: first come, first served; a request with a jump counts as come that much earlier.
	FCFS Order = iota
	// WSPT: weighted shortest processing time first, by (1 + jump in seconds) / tokens to compute.
	// It has the least mean wait; long prompts wait longest, and FCFS's promise that everyone's
	// turn comes is not made.
	WSPT
)

var orderNames = [...]string{"fcfs", "wspt"}

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
	return 0, fmt.Errorf("order %q is unknown: use fcfs or wspt", s)
}

// Limit bounds what waits. A zero field is no bound.
type Limit struct {
	// Requests, Tokens and CachedTokens are sums over waiting requests: of prompts, and of what
	// of prompts was cached when they came.
	Requests, Tokens, CachedTokens int
}

// Class is a share of the fleet.
type Class struct {
	// Name is what requests name; unique.
	Name string
	// Quantum is what the class may spend at its turn, in prompt tokens that must be computed.
	// Only the ratio between classes matters. Default 512.
	Quantum int
	// Order is who goes first within the class.
	Order Order
	// Fair serves its tenants alike, by tokens to compute.
	Fair bool
	// Limit bounds what waits in the class.
	Limit Limit
}

// Config says how waiting requests are ordered. The zero Config is one class without a name,
// first come first served.
type Config struct {
	// Classes are the classes; the first takes requests that name none, or one that there is not.
	Classes []Class
	// Limit bounds the queue. Default: 16,384 requests.
	Limit Limit
}

// DefaultRequests is how many requests may wait where no limit is set. DefaultQuantum is the quantum of a
// class that sets none, and MaxQuantum the largest one.
const (
	DefaultRequests = 16_384
	DefaultQuantum  = 512
	MaxQuantum      = 1 << 30
)

// MaxLanes bounds the lanes of a queue: each is asked about whenever a rank may have become free, and
// clients can name as many sets of workers as they like.
const MaxLanes = 1024

// MaxHeadStart bounds the head start that a priority gives, MaxStrict the strict priorities: 0 to
// MaxStrict.
const (
	MaxHeadStart = 24 * time.Hour
	MaxStrict    = 1 << 20
)

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

// Full says that a request cannot wait, and which limit stands in its way.
type Full struct {
	// Class is empty for the limit of the whole queue.
	Class string
	// What is "requests", "tokens" or "cached tokens", and Limit how many of them may wait.
	What  string
	Limit int
}

func (f *Full) Error() string {
	if f.Class == "" {
		return fmt.Sprintf("the queue is full: its limit is %d %s", f.Limit, f.What)
	}
	return fmt.Sprintf("the queue of class %s is full: its limit is %d %s", f.Class, f.Limit, f.What)
}

// reached says which limit the amount has reached; nil for none.
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
