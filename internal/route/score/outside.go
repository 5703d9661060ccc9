package score

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
)

// Outside has the blocks in caches outside engines, and the places from which ranks can load them.
//
// The maps never change, so that decisions read them without a lock. Whether a cache is connected changes, and is asked for each decision.
type Outside struct {
	index    *kvindex.Index
	usable   []func() bool             // by RankID
	models   map[string]bool           // the models that have such caches: no other request needs a second lookup
	byPlace  map[place][]fleet.RankID  // the caches of nodes and workers
	clusters map[string][]fleet.RankID // the caches of all ranks, by model
}

// Place is the place of a cache outside engines: Node or Workers, or all ranks of the model. Rank is its number in the index, Usable
// whether its blocks count now.
type Place struct {
	Rank        fleet.RankID
	Model, Node string
	Workers     []string
	Usable      func() bool
}

// place is a node or a worker of a model.
type place struct {
	model, name string
	isNode      bool
}

// NewOutside returns the blocks of an index, whose ranks are caches in these places.
func NewOutside(x *kvindex.Index, places []Place) *Outside {
	o := &Outside{index: x, models: map[string]bool{}, byPlace: map[place][]fleet.RankID{}, clusters: map[string][]fleet.RankID{}}
	o.usable = make([]func() bool, len(places))
	for _, p := range places {
		o.usable[p.Rank] = p.Usable
		o.models[p.Model] = true
		switch {
		case p.Node != "":
			at := place{p.Model, p.Node, true}
			o.byPlace[at] = append(o.byPlace[at], p.Rank)
		case len(p.Workers) > 0:
			for _, w := range p.Workers {
				at := place{p.Model, w, false}
				o.byPlace[at] = append(o.byPlace[at], p.Rank)
			}
		default:
			o.clusters[p.Model] = append(o.clusters[p.Model], p.Rank)
		}
	}
	return o
}

// findOutside finds out how much of the prompt each candidate could load from caches outside engines, after the blocks that it holds: from
// caches of the worker and of its node first. A rank with a store of KV blocks has no other connector.
func (j *Judged) findOutside(o *Outside) {
	if o == nil || j.asked.Remote || j.asked.ReadsNoCache || !o.models[j.asked.Model.Pool] {
		return
	}
	o.index.Lookup(j.asked.Blocks, &j.outside)
	if len(j.outside.Ranks()) == 0 {
		return
	}

	j.anyOutside = true
	model := j.asked.Model.Pool
	for i := range j.Candidates {
		c := &j.Candidates[i]
		if c.Facts.OnNode+c.Facts.OnPeers > 0 {
			continue
		}

		// The caches of a worker are nearest. Only the blocks after the ones before count, so none counts twice.
		name := c.Rank.Worker.Name
		at := c.Facts.HeldBlocks()
		at = j.addOutside(o, &c.Facts, o.byPlace[place{model, name, false}], at)
		at = j.addOutside(o, &c.Facts, o.byPlace[place{model, fleet.NodeOf(name), true}], at)
		j.addOutside(o, &c.Facts, o.clusters[model], at)
	}
}

// addOutside adds the blocks of some caches after the first at blocks of the prompt, and returns the position after them.
func (j *Judged) addOutside(o *Outside, f *cost.Facts, caches []fleet.RankID, at int) int {
	for _, id := range caches {
		if !o.usable[id]() {
			continue
		}
		from := 0 // of the tier's blocks
		for t, n := range j.outside.Of(id) {
			if more := from + n - at; more > 0 {
				f.Outside[t] += more
				at += more
			}
			from += n
		}
	}
	return at
}

// LoadedOutside returns the tokens that a candidate should load from caches outside engines, and their tier; 0 if they are of several.
func (j *Judged) LoadedOutside(c *pick.Candidate) (tokens int, from fleet.Tier) {
	tiers := 0
	for t, n := range c.Facts.Outside {
		if n > 0 {
			tiers, from = tiers+1, fleet.Tier(t)
		}
	}
	// A load from several tiers would show only their sum.
	held := c.Facts.Cached(&j.Request)
	if tiers != 1 || len(j.sources) > 0 || j.Request.PromptTokens-c.Uncached <= held {
		return 0, 0
	}
	return j.Request.PromptTokens - c.Uncached - held, from
}
