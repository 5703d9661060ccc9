package cost

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// TestScores runs testdata/*.txt. The verb is
//
//	score prompt=TOKENS [block=TOKENS] [answer=TOKENS] [reuse=X] [mean=REQUESTS] [passes=X] [by=dynamo [scale=X] [decay=X] [requests=X]]
//
// with a candidate a line: NAME and any of device, host, disk, external (blocks of the prompt that it has), prefill
// (booked tokens), decode (booked blocks), capacity and held (blocks), requests, untracked and slots (requests), wait
// and age (milliseconds), pace and footprint (percent), and gathering (1 for true). It prints the table of scores, by delay unless
// another function is named: prompts take 20 ms and 0.1 ms a token, and decode steps 10 ms and 0.1 µs a token.
func TestScores(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			r := Request{BlockSize: 16, Mean: 3, Passes: 1, Line: perfmodel.Line{Base: 20 * time.Millisecond, Token: 100_000},
				Decode: perfmodel.Line{Base: 10 * time.Millisecond, Token: 100}}
			dynamo, by := Dynamo(), Function(Default())
			for _, a := range d.CmdArgs {
				if a.Key == "by" {
					by = dynamo
					continue
				}
				v, err := strconv.ParseFloat(a.Vals[0], 64)
				switch a.Key {
				case "prompt":
					r.PromptTokens = int(v)
				case "block":
					r.BlockSize = int(v)
				case "answer":
					r.Answer = v
				case "reuse":
					r.Reuse = v
				case "mean":
					r.Mean = v
				case "passes":
					r.Passes = v
				case "scale":
					dynamo.PrefillLoadScale = v
				case "decay":
					dynamo.OverlapDecay = v
				case "requests":
					dynamo.Requests = v
				}
				if err != nil {
					d.Fatalf(t, "%s: %v", a.Key, err)
				}
			}
			return table(t, d, r, by)
		})
	})
}

func table(t *testing.T, d *datadriven.TestData, r Request, by Function) string {
	text := fmt.Sprintf("%-9s %8s = %8s + %8s + %8s + %8s + %8s + %8s + %8s   %8s\n",
		by, "cost", "wait", "slot", "prefill", "others", "evict", "room", "decode", "uncached")
	if by.String() == NameDynamo {
		text = fmt.Sprintf("%-8s %8s = %8s + %8s + %8s   %8s %8s\n", by, "cost", "prefill", "decode", "requests", "credit", "uncached")
	}
	var names []string
	var facts []Facts
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		names, facts = append(names, words[0]), append(facts, candidate(t, d, words[1:]))
	}
	for i := range facts {
		if p := facts[i].Booked.PrefillTokens; i == 0 || p < r.MinPrefillTokens {
			r.MinPrefillTokens = p
		}
		r.MostHeld = max(r.MostHeld, facts[i].OnDevice(&r))
	}
	for i := range facts {
		var s Score
		by.Score(&r, &facts[i], &s)
		if by.String() == NameDynamo {
			text += fmt.Sprintf("%-8s %8.1f = %8.1f + %8.1f + %8.1f   %8.1f %8d\n", names[i], s.Total, s.Prefill, s.Decode, s.Requests, s.Credit, s.Uncached)
			continue
		}
		text += fmt.Sprintf("%-9s %8.1f = %8.1f + %8.1f + %8.1f + %8.1f + %8.1f + %8.1f + %8.1f   %8d\n",
			names[i], s.Total, s.Wait, s.Slot, s.Prefill, s.Others, s.Evict, s.Room, s.Decode, s.Uncached)
	}
	return text
}

func candidate(t *testing.T, d *datadriven.TestData, words []string) (f Facts) {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			d.Fatalf(t, "%s: %v", word, err)
		}
		switch key {
		case "prefill":
			f.Booked.PrefillTokens = int64(n)
		case "decode":
			f.Booked.DecodeBlocks = int64(n)
		case "requests":
			f.Booked.Requests = int64(n)
		case "capacity":
			f.Capacity = n
		case "held":
			f.Held = n
		case "slots":
			f.Slots = n
		case "gathering":
			f.Gathering = n == 1
		case "footprint":
			f.Footprint = float64(n) / 100
		case "wait":
			f.Wait = time.Duration(n) * time.Millisecond
		case "age":
			f.Age, f.Aged = time.Duration(n)*time.Millisecond, true
		case "pace":
			f.Pace = float64(n) / 100
		case "untracked":
			f.Untracked = int64(n)
		default:
			tier := fleet.Device
			for tier < fleet.Tiers && tier.String() != key {
				tier++
			}
			if tier == fleet.Tiers {
				d.Fatalf(t, "unknown fact %s", key)
			}
			f.Overlap[tier] = n
		}
	}
	return f
}

func TestWeightsAreValidated(t *testing.T) {
	for _, f := range []Function{Default(), Dynamo()} {
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
	}
	d, w := Default(), Dynamo()
	d.Tier[fleet.Host], d.FirstToken = -1, -1
	w.Tier[fleet.Host], w.Decode = -1, -1
	for _, err := range []error{d.Validate(), w.Validate()} {
		if err == nil || !strings.Contains(err.Error(), "tier.host") || !strings.Contains(err.Error(), "firstToken") && !strings.Contains(err.Error(), "decode") {
			t.Errorf("%v should name both weights", err)
		}
	}
}

// BenchmarkScore: what does judging one candidate cost?
//
//	go test -run - -bench Score ./internal/route/cost
func BenchmarkScore(b *testing.B) {
	r := Request{BlockSize: 16, PromptTokens: 4000, Line: perfmodel.DefaultSpeed().Prefill}
	f := Facts{Overlap: [fleet.Tiers]int{100, 20}}
	f.Booked, f.Wait = fleet.Amount{Requests: 3, PrefillTokens: 5000, DecodeBlocks: 900}, time.Millisecond
	for _, by := range []Function{Default(), Dynamo()} {
		b.Run("cost="+by.String(), func(b *testing.B) {
			b.ReportAllocs()
			var s Score
			for b.Loop() {
				if by.Score(&r, &f, &s); s.Total < 0 {
					b.Fatal("negative")
				}
			}
		})
	}
}

// TestMeasuredTiers: a cached token is worth its computing time less its loading time, if the latter is known.
// Computing takes 0.1 ms a token.
func TestMeasuredTiers(t *testing.T) {
	r := Request{BlockSize: 16, PromptTokens: 1601, Line: perfmodel.Line{Token: 100_000}}
	own := func(load *[fleet.Tiers]fleet.TierLoad) float64 {
		f := Facts{Overlap: [fleet.Tiers]int{fleet.Host: 50, fleet.Disk: 50}}
		if load != nil {
			f.Store = &fleet.Store{Tiers: *load}
		}
		var s Score
		Default().Score(&r, &f, &s)
		return s.Own
	}

	for name, c := range map[string]struct {
		load [fleet.Tiers]fleet.TierLoad
		want float64 // milliseconds
	}{
		"unknown: 0.75 and 0.25 of the tokens are saved": {[fleet.Tiers]fleet.TierLoad{}, 160.1 - 0.75*80 - 0.25*80},
		"both are loaded in a tenth of the time": {[fleet.Tiers]fleet.TierLoad{
			fleet.Host: {Token: 10 * time.Microsecond}, fleet.Disk: {Token: 10 * time.Microsecond},
		}, 160.1 - 0.9*160},
		"the host waits for 30 ms": {[fleet.Tiers]fleet.TierLoad{
			fleet.Host: {Wait: 30 * time.Millisecond, Token: 10 * time.Microsecond}, fleet.Disk: {Token: 10 * time.Microsecond},
		}, 160.1 - (0.9*80 - 30) - 0.9*80},
		"the disk is slower than computing": {[fleet.Tiers]fleet.TierLoad{
			fleet.Host: {Token: 10 * time.Microsecond}, fleet.Disk: {Token: 200 * time.Microsecond},
		}, 160.1 - 0.9*80},
	} {
		if got := own(&c.load); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v ms, want %v", name, got, c.want)
		}
	}
	if got, want := own(nil), 160.1-0.75*80-0.25*80; math.Abs(got-want) > 1e-9 {
		t.Errorf("without a report: %v ms, want %v", got, want)
	}
}

// TestLoadsWithinReach: blocks in host memory of the node and of other nodes count like cached ones if loading them is faster than
// computing, which takes 0.1 ms a token. They need the blocks before them.
func TestLoadsWithinReach(t *testing.T) {
	r := Request{BlockSize: 16, PromptTokens: 1601, Line: perfmodel.Line{Token: 100_000}}
	fast, slow := fleet.TierLoad{Token: 10 * time.Microsecond}, fleet.TierLoad{Token: 200 * time.Microsecond}
	for name, c := range map[string]struct {
		host, peers   fleet.TierLoad
		loaded        int32
		own           float64 // milliseconds
		nothingOnNode bool
	}{
		"both":                                 {host: fast, peers: fast, loaded: 1600, own: 160.1 - 0.9*160},
		"other nodes are slow":                 {host: fast, peers: slow, loaded: 800, own: 160.1 - 0.9*80},
		"no other nodes":                       {host: fast, loaded: 800, own: 160.1 - 0.9*80},
		"the node's memory is slow":            {host: slow, peers: fast, own: 160.1},
		"other nodes alone":                    {host: slow, peers: fast, loaded: 800, own: 160.1 - 0.9*80, nothingOnNode: true},
		"the time of the node is not measured": {peers: fast, loaded: 1600, own: 160.1 - 0.75*80 - 0.9*80},
	} {
		f := Facts{OnNode: 50, OnPeers: 60, Store: &fleet.Store{Peers: c.peers}}
		f.Store.Tiers[fleet.Host] = c.host
		if c.nothingOnNode {
			f.OnNode, f.OnPeers = 0, 50
		}
		var s Score
		Default().Score(&r, &f, &s)
		if s.Loaded != c.loaded || s.Uncached != 1601-int(c.loaded) || s.Tie != 1601 || math.Abs(s.Own-c.own) > 1e-9 {
			t.Errorf("%s: %d tokens are loaded, %d are computed in %v ms; want %d in %v", name, s.Loaded, s.Uncached, s.Own, c.loaded, c.own)
		}
	}
}

// TestLasting has differences of load last longer where few requests run, within bounds.
func TestLasting(t *testing.T) {
	for mean, want := range map[float64]float64{0: 3, 1: 3, 2: 1.5, 3: 1, 100: 1} {
		if got := (&Request{Mean: mean}).lasting(); got != want {
			t.Errorf("%g requests on a candidate: %g, want %g", mean, got, want)
		}
	}
}
