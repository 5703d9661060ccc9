package engineprobe

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

// Identity is what an engine reports of itself when nothing is configured.
type Identity struct {
	// Kind is the name of its kind: see package engines. It is exec for an engine whose metrics are off, or of no known kind.
	Kind string
	// Name is the name of its model, and Aliases are further names of the same, at most maxAliases. Root is the folder, the file or the
	// repository that the model was loaded from; empty if the engine does not report it.
	Name, Root string
	Aliases    []string
	// BlockSize is the number of tokens of a KV block; 0 if the engine does not report it.
	BlockSize int
	// Ranks is the number of its data-parallel ranks, at least 1.
	Ranks int
}

// Bounds of reported values.
const (
	maxName      = 256
	maxPath      = 1024
	maxAliases   = 16
	maxBlockSize = 4096
)

var errNoModel = errors.New("it lists no model")

// Identify asks the engine at ip:port about itself. It is an error if the engine lists no model: everything else has a default. The
// context and the client bound the time.
func Identify(ctx context.Context, client *http.Client, address string) (Identity, error) {
	p := &Probe{base: "http://" + address, client: client}
	id := Identity{Kind: engines.Exec.Name, Ranks: 1}
	err := p.readPage(ctx, "/v1/models", func(r io.Reader) error {
		list, err := readList(r)
		if err == nil {
			err = id.readNames(&list)
		}
		return err
	})
	if err != nil {
		return Identity{}, err
	}

	pages := map[string]metric.Samples{}
	for _, kind := range engines.All() {
		names := &kind.Metrics
		path, marker := cmp.Or(names.Path, "/metrics"), cmp.Or(names.Marker, names.Running)
		if kind == engines.Sim || marker == "" { // the metrics of a simulated engine are vLLM's
			continue
		}
		page, asked := pages[path]
		if !asked {
			page = p.metrics(ctx, path)
			pages[path] = page
		}
		if slices.ContainsFunc(page, func(s metric.Sample) bool { return s.Name == marker }) {
			id.Kind = kind.Name
			id.readPage(names, page)
			break
		}
	}

	p.pages = engines.Of(id.Kind).Pages
	options, _ := p.Options(ctx) // an engine that hides them is known by the rest
	id.BlockSize = cmp.Or(options.BlockSize, id.BlockSize)
	id.Ranks = cmp.Or(options.Ranks, id.Ranks)
	id.Root = cmp.Or(options.Path, id.Root) // SGLang lists its name for clients as the root, and llama.cpp none
	return id, nil
}

// readNames reads the names of the engine's model.
func (id *Identity) readNames(list *modelList) error {
	for i := range list.Data {
		model := &list.Data[i]
		switch {
		case len(model.ID) == 0, len(model.ID) > maxName, len(model.Root) > maxPath, list.isAdapter(i):
		case id.Name == "":
			id.Name, id.Root = model.ID, model.Root
		case len(id.Aliases) < maxAliases:
			id.Aliases = append(id.Aliases, model.ID)
		}
	}
	if id.Name == "" {
		return errNoModel
	}
	return nil
}

// metrics returns the samples of a page; none if it cannot be read.
func (p *Probe) metrics(ctx context.Context, path string) (page metric.Samples) {
	_ = p.readPage(ctx, path, func(r io.Reader) error {
		var err error
		page, err = metric.Read(io.LimitReader(r, maxMetrics))
		return err
	})
	return page
}

// readPage reads the block size and the ranks from metrics. Each rank of vLLM has samples with a label "engine" of its own.
func (id *Identity) readPage(names *engines.Metrics, page metric.Samples) {
	id.BlockSize = blockSizeOf(names, page)

	ranks := map[string]bool{}
	for _, s := range page {
		if s.Name == names.Running && s.Labels["engine"] != "" {
			ranks[s.Labels["engine"]] = true
		}
	}
	id.setRanks(len(ranks))
}

// blockSizeOf returns the tokens of a block by metrics; 0 if they do not have a size that can be.
func blockSizeOf(names *engines.Metrics, page metric.Samples) int {
	size := 0
	if names.Config != "" {
		size, _ = strconv.Atoi(page.Label(names.Config, "block_size"))
	}
	if names.BlockSize != "" {
		size = int(min(least(page, names.BlockSize), maxBlockSize+1))
	}
	return within(size, maxBlockSize)
}

func (id *Identity) setRanks(n int) {
	if n >= 1 && n <= fleet.MaxRanks {
		id.Ranks = n
	}
}
