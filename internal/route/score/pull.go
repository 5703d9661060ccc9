package score

import (
	"math"
	"net/netip"
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
)

// source is the rank that holds most of a prompt, among the ranks of one site from which others can fetch.
type source struct {
	rank   *fleet.Rank
	blocks int
	place  fleet.Place
}

// findSources finds the rank of each site that holds most of the prompt, whether it is free or busy.
func (j *Judged) findSources(f *eligible.Field, overlap *kvindex.Overlap) {
	j.sources = j.sources[:0]
	if j.asked.Remote || j.asked.ReadsNoCache || len(f.Ranks) == 0 || !canPull(f.Ranks[0].Worker) {
		return
	}
	for _, site := range f.NumberSites() {
		j.sources = append(j.sources, source{place: site.Place})
	}
	for i := range f.Ranks {
		most := &j.sources[f.Sites[i]]
		held := overlap.Find(f.Ranks[i].ID)
		if held == nil {
			continue
		}
		if n := cost.HeldBlocks(&held.Blocks); n > most.blocks && canPull(f.Ranks[i].Worker) {
			most.rank, most.blocks = &f.Ranks[i], n
		}
	}
	j.sources = slices.DeleteFunc(j.sources, func(s source) bool { return s.rank == nil })
	if len(j.sources) > math.MaxInt16 {
		j.sources = j.sources[:math.MaxInt16]
	}
}

// chooseSource chooses the rank from which a candidate would fetch the beginning of the prompt: the one that saves most time, which may be
// near and hold less of the prompt than another one. The request must have the model of the candidate's class.
func (j *Judged) chooseSource(c *pick.Candidate) {
	if !canPull(c.Rank.Worker) {
		return
	}
	place, held := c.Rank.Worker.Place(), c.Facts.HeldBlocks()
	most := 0.0 // milliseconds
	f := c.Facts
	for i := range j.sources {
		s := &j.sources[i]
		if s.blocks <= held || !canPullFrom(s.rank.Worker, c.Rank.Worker) {
			continue
		}
		f.Source, f.Pullable = int16(i), s.blocks-held
		f.FromSource = place.Shared(&s.place)
		if saves := f.PullSaves(&j.Request); saves > most {
			c.Facts, most = f, saves
		}
	}
}

// findPartners finds out, for the site of each decode worker, how much its prefill workers cost by the place that both share. Sites are
// compared once for each pair of them, and not for each pair of workers: a large fleet has few sites.
func (j *Judged) findPartners(f *eligible.Field) {
	j.partners = j.partners[:0]
	if !j.asked.Remote || len(j.asked.Prefills) == 0 {
		return
	}
	for _, site := range f.NumberSites() {
		var p cost.Partners
		for level := range p {
			p[level] = math.Inf(1)
		}
		for i := range j.asked.Prefills {
			at := &j.asked.Prefills[i]
			if level := site.Place.Shared(&at.Place); site.Exchanges(&at.Site) {
				p[level] = min(p[level], at.More)
			}
		}
		j.partners = append(j.partners, p)
	}
	for i := range j.Candidates {
		j.Candidates[i].Facts.Partners = &j.partners[f.Sites[i]]
	}
}

// AppendSites appends the least cost of the candidates for each site, beyond the least of all, to an empty list. The candidates must be
// all usable ranks of the field. A site whose ranks are all busy has an infinite cost.
func (j *Judged) AppendSites(to []request.PrefillSite, f *eligible.Field) []request.PrefillSite {
	least := j.Least()
	for _, site := range f.NumberSites() {
		to = append(to, request.PrefillSite{Site: site, More: math.Inf(1)})
	}
	for i := range j.Candidates {
		at := &to[f.Sites[i]]
		at.More = min(at.More, j.Candidates[i].Total-least)
	}
	return to
}

// canPull reports whether a worker can fetch blocks from others of its kind, and they from it.
func canPull(w *fleet.Worker) bool { return w.Transfer == fleet.TransferP2P && w.TransferAt != "" }

// canPullFrom reports whether a worker can fetch blocks of another one: blocks of the same size, by an engine of the same revision.
func canPullFrom(from, to *fleet.Worker) bool {
	return from != to && from.TokensPerBlock() == to.TokensPerBlock() && to.ExchangesCaches(from.Revision)
}

// TransferAddress returns the address at which others reach a rank of the worker for transfers; empty if they need no address. SGLang has
// one bootstrap server for all ranks of a worker, and vLLM one port for each rank.
func TransferAddress(w *fleet.Worker, rank int) string {
	if rank == 0 || w.Transfer != fleet.TransferP2P {
		return w.TransferAt
	}
	at, err := netip.ParseAddrPort(w.TransferAt)
	if err != nil {
		return w.TransferAt // by name, which has one rank
	}
	return netip.AddrPortFrom(at.Addr(), at.Port()+uint16(rank)).String()
}
