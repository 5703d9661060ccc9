package config

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"regexp"
	"slices"
	"strconv"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Found is a worker that was discovered, with what its engine reports.
type Found struct {
	// Name and Address are the worker's. Without an address it only keeps its model known, while the model has no worker.
	Name, Address string
	Role          fleet.Role
	Revision      string
	// Epoch is another one after each restart of the engine.
	Epoch uint64
	// Engine is the kind of engine, Ranks the number of its ranks, and BlockSize its tokens per block; 0 if that is unknown.
	Engine           string
	Ranks, BlockSize int
	// MaxRequests is the number of requests that a rank runs at once; 0 if it is unknown.
	MaxRequests int
	// Model is the name of its model, and Aliases are further ones. Root is the folder or repository that the engine has loaded it from.
	Model, Root string
	Aliases     []string
	// Path is the path of the model's files, if it is known otherwise than by Root.
	Path string
	// Taints name its place, and PlaceFrom is their source.
	Taints    fleet.Taints
	PlaceFrom fleet.PlaceSource
	// NoEvents means that the engine is known to publish no KV events, or none that can be found.
	NoEvents bool
}

// repository matches the name of a repository on a Hugging Face hub. A folder on the engine's host has a slash at its beginning, or a dot.
var repository = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$`)

// With returns the configuration with workers that were discovered, in the order of their names. A model that no file names is added,
// with the defaults of a file, and the repository of its engines for its path. Workers that cannot be used are left
// out; the error names them, and the configuration is valid all the same.
func (c *Config) With(found []Found) (*Config, error) {
	with := *c
	with.Models = slices.Clone(c.Models)
	with.Found = nil

	var errs []error
	for i := range found {
		f := &found[i]
		m := with.modelOf(f)
		if f.Address == "" {
			continue
		}
		w, err := f.worker(m)
		if err != nil {
			errs = append(errs, fmt.Errorf("worker %s of model %s cannot be used: %w", f.Name, f.Model, err))
			continue
		}
		with.Found = append(with.Found, w)
	}
	return &with, errors.Join(errs...)
}

// modelOf returns the model of a worker, which it adds if there is none.
func (c *Config) modelOf(f *Found) *Model {
	for i := range c.Models {
		m := &c.Models[i]
		if !slices.Contains(m.Names(), f.Model) {
			continue
		}
		return m
	}

	m := Model{}
	applyDefaults(reflect.ValueOf(&m).Elem())
	m.Name = f.Model
	m.Path = f.Path
	if m.Path == "" && repository.MatchString(f.Root) {
		m.Path = "hf:" + f.Root
	}
	for _, alias := range f.Aliases {
		if !c.isNamed(alias) && alias != m.Name {
			m.Aliases = append(m.Aliases, alias)
		}
	}
	m.inherit(&c.Gateway)
	m.Targets.inherit(&c.Planner)
	c.Models = append(c.Models, m)
	return &c.Models[len(c.Models)-1]
}

// isNamed reports whether a model has that name.
func (c *Config) isNamed(name string) bool {
	return slices.ContainsFunc(c.Models, func(m Model) bool { return slices.Contains(m.Names(), name) })
}

// worker returns the worker with the defaults of a listed one.
func (f *Found) worker(m *Model) (fleet.Worker, error) {
	w := Worker{}
	applyDefaults(reflect.ValueOf(&w).Elem())
	w.Name, w.Address = f.Name, f.Address
	w.Role = f.Role.String()
	w.Engine, w.Ranks = f.Engine, f.Ranks
	w.MaxRequests = f.MaxRequests
	kind, known := engines.Named(f.Engine)
	if !known {
		return fleet.Worker{}, fmt.Errorf("its engine is %q", f.Engine)
	}
	if publishes := kind.Dialect == engines.VLLMEvents || kind.Dialect == engines.SGLangEvents; publishes && m.Path != "" && !f.NoEvents {
		w.KVEvents = "auto"
	}
	w.inherit(m)

	worker, err := w.fleetWorker(m)
	if err != nil {
		return worker, err
	}
	worker.Revision = f.Revision
	worker.Taints, worker.PlaceFrom = f.Taints, f.PlaceFrom
	worker.Reported = true
	worker.Figures.BlockSize = fleet.Figure{Value: f.BlockSize, Source: fleet.FromMetrics}
	worker.Epoch = f.epochOf(&worker)
	return worker, worker.Validate()
}

// epochOf returns an epoch that is another one for another start of the engine, and for another use of it. It is the same in every replica
// with the same configuration.
func (f *Found) epochOf(w *fleet.Worker) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, f.Epoch))
	for _, text := range []string{
		w.Model, w.Engine, w.Address, w.Revision, w.KVEvents, w.TransferAt, w.Role.String(), w.Transfer.String(),
		strconv.Itoa(w.Ranks), strconv.Itoa(w.TokensPerBlock()),
	} {
		_, _ = h.Write(append([]byte(text), 0))
	}
	return h.Sum64() | 1 // 0 means that starts cannot be distinguished
}
