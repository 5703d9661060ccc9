// Package kvindex will remember who holds which prefix.
package kvindex

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

type Config struct{ MaxBytes int64 }

type Index struct{}

type progress struct{}

func New(cfg Config) *Index { return &Index{} }

func (x *Index) Lookup(blocks []blockhash.Block, out *Overlap) { out.reset() }

func (x *Index) Predict(rank fleet.RankID, blocks []blockhash.Block, until time.Time, limit int) {}

func (x *Index) Expire(now time.Time) {}
func (x *Index) Store(rank fleet.RankID, tier fleet.Tier, parent uint64, hasParent bool, hashes []uint64, blocks []blockhash.Block) {
}
func (x *Index) Remove(rank fleet.RankID, tier fleet.Tier, hashes []uint64) {}
func (x *Index) Clear(rank fleet.RankID)                                     {}
func (x *Index) Drop(rank fleet.RankID)                                      {}
