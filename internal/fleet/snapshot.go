package fleet

import (
	"slices"
	"strings"
)

// RankID numbers the ranks of the fleet densely from 0, so that tables can be arrays. It
// belongs to one (worker, rank, epoch) and is used again only after [Hooks.RankGone] has
// returned, oldest first.
type RankID uint32

// Rank is one data-parallel rank of a worker in one epoch.
type Rank struct {
	ID     RankID
	Number int // 0 to Worker.Ranks-1
	Worker *Worker
	Load   *Load
}

// Snapshot is the membership at one moment. It is immutable.
type Snapshot struct {
	// Version grows with every change.
	Version uint64
	// Workers are sorted by name.
	Workers []*Worker
	// Ranks are sorted by worker name and rank number.
	Ranks []Rank
	// MaxRank is one more than the largest RankID in Ranks: the length of a table by RankID.
	MaxRank int

	pools map[poolKey][]Rank
	// first is the position of each worker's rank 0 in Ranks; its other ranks follow.
	first map[string]int
}

type poolKey struct {
	model string
	role  Role
}

// Pool returns the ranks that serve a model in a role, sorted by worker name and rank
// number, whatever their state. The caller must not change the slice.
func (s *Snapshot) Pool(model string, role Role) []Rank { return s.pools[poolKey{model, role}] }

// Worker returns the worker of that name, or nil.
func (s *Snapshot) Worker(name string) *Worker {
	i, ok := slices.BinarySearchFunc(s.Workers, name, func(w *Worker, n string) int {
		return strings.Compare(w.Name, n)
	})
	if !ok {
		return nil
	}
	return s.Workers[i]
}

// Rank returns one rank of a worker; false if there is no such worker or rank.
func (s *Snapshot) Rank(worker string, number int) (Rank, bool) {
	i, ok := s.first[worker]
	if !ok || number < 0 || number >= s.Ranks[i].Worker.Ranks {
		return Rank{}, false
	}
	return s.Ranks[i+number], true
}

// RanksOf returns all ranks of a worker; none if there is no such worker.
func (s *Snapshot) RanksOf(worker string) []Rank {
	i, ok := s.first[worker]
	if !ok {
		return nil
	}
	return s.Ranks[i : i+s.Ranks[i].Worker.Ranks]
}
