package kvindex

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// TestScenarios runs testdata/*.txt. A block is a letter, and so is its hash on an engine
// whose name ends in a digit: rank 0's hash of "a" is not rank 1's. Verbs:
//
//	store rank=R [tier=T] [after=x] [tokens=no]   letters: the chain, continuing the block x
//	remove rank=R [tier=T]                        letters
//	window rank=R group=G blocks=N [after=x] [tokens=no]   letters, held in a sliding-window group
//	unwindow rank=R group=G                       letters
//	clear rank=R | drop rank=R
//	reload rank=R                                 from a dump of its own
//	predict rank=R until=SECONDS [from=N] [limit=N]   letters, a chain from the root
//	withdraw rank=R until=SECONDS [from=N]        letters, a chain from the root: prints how many
//	until rank=R                                  letters: how long the last is predicted
//	expire at=SECONDS
//	lookup                                        letters: prints each rank's overlap by tier
//	stats
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			x := New(Config{MaxOrphans: 4})
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				return act(t, x, d)
			})
		})
	}
}

func act(t *testing.T, x *Index, d *datadriven.TestData) string {
	letters := strings.TrimSpace(d.Input)
	id, tier := fleet.RankID(number(t, d, "rank")), fleet.Device
	for i := range fleet.Tier(fleet.Tiers) {
		if d.HasArg("tier") && d.CmdArgs[argument(d, "tier")].Vals[0] == i.String() {
			tier = i
		}
	}
	blocks, hashes := make([]blockhash.Block, len(letters)), make([]uint64, len(letters))
	for i := range letters {
		blocks[i], hashes[i] = blockhash.Block(letters[i]), engine(id, letters[i])
	}
	if d.HasArg("tokens") {
		blocks = nil
	}
	parent := uint64(0)
	if d.HasArg("after") {
		parent = engine(id, d.CmdArgs[argument(d, "after")].Vals[0][0])
	}
	switch d.Cmd {
	case "window":
		x.StoreWindow(id, Window{Group: number(t, d, "group"), Blocks: number(t, d, "blocks")}, Chain{Parent: parent, HasParent: d.HasArg("after"), Hashes: hashes, Blocks: blocks})
	case "unwindow":
		x.RemoveWindow(id, number(t, d, "group"), hashes)
	case "reload":
		if err := x.Load(id, x.AppendDump(nil, id)); err != nil {
			d.Fatalf(t, "%v", err)
		}
	case "store":
		x.Store(id, tier, Chain{Parent: parent, HasParent: d.HasArg("after"), Hashes: hashes, Blocks: blocks})
	case "remove":
		x.Remove(id, tier, hashes)
	case "clear":
		x.Clear(id)
	case "drop":
		x.Drop(id)
	case "predict":
		x.Predict(id, blockhash.Chain(nil, blocks), number(t, d, "from"), time.Unix(int64(number(t, d, "until")), 0), number(t, d, "limit"))
	case "withdraw":
		n := x.Withdraw(id, blockhash.Chain(nil, blocks), number(t, d, "from"), time.Unix(int64(number(t, d, "until")), 0))
		return fmt.Sprintf("%d blocks\n", n)
	case "until":
		chain := blockhash.Chain(nil, blocks)
		if at, ok := x.PredictedUntil(id, chain[len(chain)-1]); ok {
			return fmt.Sprintf("%d\n", at.Unix())
		}
		return "not predicted\n"
	case "expire":
		x.Expire(time.Unix(int64(number(t, d, "at")), 0))
	case "stats":
		s := x.Stats()
		return fmt.Sprintf("nodes %d, pairs %d, orphans %d, predicted %d, unknown %d\n", s.Nodes, s.Pairs, s.Orphans, s.Predicted, s.Unknown)
	case "lookup":
		return overlaps(x, blocks)
	default:
		d.Fatalf(t, "unknown verb %s", d.Cmd)
	}
	return ""
}

func engine(id fleet.RankID, letter byte) uint64 { return uint64(id)<<32 | uint64(letter) }

func argument(d *datadriven.TestData, key string) int {
	for i, a := range d.CmdArgs {
		if a.Key == key {
			return i
		}
	}
	return -1
}

func number(t *testing.T, d *datadriven.TestData, key string) int {
	if !d.HasArg(key) {
		return 0
	}
	n, err := strconv.Atoi(d.CmdArgs[argument(d, key)].Vals[0])
	if err != nil {
		d.Fatalf(t, "%s: %v", key, err)
	}
	return n
}

func overlaps(x *Index, blocks []blockhash.Block) string {
	var out Overlap
	x.Lookup(blocks, &out)
	text := ""
	for id := range *x.byID.Load() {
		if got := out.Of(fleet.RankID(id)); got != [fleet.Tiers]int{} {
			text += fmt.Sprintf("rank %d: device %d, host %d, disk %d, external %d\n", id, got[0], got[1], got[2], got[3])
		}
	}
	if text == "" {
		return "nobody\n"
	}
	return text
}
