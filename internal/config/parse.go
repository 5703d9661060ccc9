package config

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxBytes bounds the file; real ones have a few kilobytes.
const maxBytes = 4 << 20

// Parse reads one file. The error joins every problem found, one per line.
func Parse(data []byte) (*Config, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("the file has %d bytes; the limit is %d", len(data), maxBytes)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("parse YAML: %w", err)
	}
	c := &Config{}
	if len(root.Content) > 0 {
		if errs := decode(root.Content[0], c); len(errs) > 0 {
			return nil, errors.Join(errs...)
		}
	}
	c.fillIn()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// fillIn sets every default.
func (c *Config) fillIn() {
	orString(&c.Gateway.Listen, "127.0.0.1:8080")
	orInt(&c.Gateway.MaxBodyBytes, 64<<20)
	orString(&c.Gateway.UnknownPaths, "route")
	orInt(&c.Gateway.DecisionTimeout, Duration(5e9))
	orInt(&c.Gateway.IdleTimeout, Duration(600e9))
	orString(&c.Gateway.AffinityHeader, "x-session-id")
	c.Gateway.AffinityHeader = strings.ToLower(c.Gateway.AffinityHeader) // as Envoy spells headers
	orString(&c.Gateway.Hints, "nvext")
	orInt(&c.Index.MaxBytes, 256<<20)
	orInt(&c.Index.AgentBytes, 256<<20)
	orInt(&c.Index.DriftTokens, 1_000_000)
	if c.Index.DriftRatio == 0 {
		c.Index.DriftRatio = 0.25
	}
	orInt(&c.Prompts.MemoryBytes, 64<<20)
	orInt(&c.Decisions.LogBytes, 256<<20)
	orInt(&c.Decisions.HashEvery, 32)
	orString(&c.Bus.Cluster, "default")
	orInt(&c.Bus.LeaseTTL, Duration(10e9))
	for i := range c.Models {
		m := &c.Models[i]
		orInt(&m.BlockSize, 16)
		orString(&m.Router.Policy, "kv")
		orString(&m.Router.Cost, "delay")
		m.Router.fillIn()
		for j := range m.Launch {
			orString(&m.Launch[j].Role, "aggregated")
			orInt(&m.Launch[j].Count, 1)
		}
		for j := range m.Workers {
			w := &m.Workers[j]
			orString(&w.Role, "aggregated")
			orString(&w.Engine, "vllm")
			orInt(&w.Ranks, 1)
			orInt(&w.Weight, 1)
		}
	}
}

func (r *Router) fillIn() {
	if r.Busy.KVRelease == 0 {
		r.Busy.KVRelease = 0.9 * r.Busy.KVUsage
	}
	orInt(&r.Busy.Status, 503)
	orInt(&r.Queue.Requests, 16_384)
	orString(&r.Queue.Order, "fcfs")
	for i := range r.Queue.Classes {
		orInt(&r.Queue.Classes[i].Quantum, 512)
		orString(&r.Queue.Classes[i].Order, r.Queue.Order)
	}
}

func orString(p *string, def string) {
	if *p == "" {
		*p = def
	}
}

func orInt[T ~int | ~int64](p *T, def T) {
	if *p == 0 {
		*p = def
	}
}
