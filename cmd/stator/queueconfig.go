package main

import (
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/route/queue"
)

// queueOf says how requests wait; nil where none does. Names of orders have been validated.
func queueOf(r *config.Router) *queue.Config {
	q := &r.Queue
	if q.MaxWait == 0 {
		return nil
	}
	order := func(name string) queue.Order {
		o, _ := queue.ParseOrder(name)
		return o
	}
	cfg := &queue.Config{
		Limit:   queue.Limit{Requests: q.Requests, Tokens: q.Tokens, CachedTokens: q.CachedTokens},
		Classes: []queue.Class{{Order: order(q.Order), Fair: q.Fair}},
	}
	if len(q.Classes) > 0 {
		cfg.Classes = nil
	}
	for i := range q.Classes {
		c := &q.Classes[i]
		cfg.Classes = append(cfg.Classes, queue.Class{
			Name: c.Name, Quantum: c.Quantum, Order: order(c.Order), Fair: q.Fair,
			Limit: queue.Limit{Requests: c.Requests, Tokens: c.Tokens, CachedTokens: c.CachedTokens},
		})
	}
	return cfg
}
