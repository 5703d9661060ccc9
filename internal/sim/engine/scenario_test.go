package engine_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
)

// TestScenarios runs the files of testdata. Their verbs:
//
//	engine blocks=N block=N [seqs=N] [tokens=N] [len=N] [queue=N] [host=N] [disk=N] [read=D] [loadall]
//	      a new engine; block is tokens per block, tokens the budget of a pass. A prefill takes
//	      10 ms and 1 ms for each new token, a decode step 5 ms. host and disk are the blocks of tiers. A block is
//	      written in 1 ms; it is read in read (1 ms) from the host, and in ten times that from the disk.
//	submit NAME prompt=1-10,50 [max=N] [salt=X] [lora=X] [delivered=N] [whole]
//	      a request; its prompt is ranges of tokens. The n-th request answers n00, n01, ...
//	begin, end
//	      the two halves of a pass; the clock moves to the pass's end. Where there is none, it moves to when a load ends.
//	step [N]
//	      N passes (1), each begun and ended.
//	cancel NAME
//	reset
//	      empty the prefix cache
//
// A pass is printed as what each request emitted and how the cache changed; blocks are shown
// by their tokens, and "<" names the block before.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{t: t, now: time.UnixMilli(0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var w strings.Builder
			s.run(d, &w)
			return w.String()
		})
	})
}

type scenario struct {
	t      *testing.T
	e      *engine.Engine
	now    time.Time
	end    time.Time
	by     map[string]*engine.Request
	labels map[kvevent.EngineHash]string
}

func (s *scenario) run(d *datadriven.TestData, w *strings.Builder) {
	switch d.Cmd {
	case "engine":
		s.start(d, w)
		return
	case "submit":
		s.submit(d, w)
	case "begin":
		s.begin(w)
	case "end":
		s.finish(w)
	case "step":
		for range steps(d) {
			s.begin(w)
			if s.end.IsZero() {
				break
			}
			s.finish(w)
		}
	case "cancel":
		if !s.e.Cancel(s.by[d.CmdArgs[0].Key]) {
			fmt.Fprintln(w, "done before")
		}
	case "reset":
		fmt.Fprintln(w, "reset:", s.e.Reset())
	default:
		d.Fatalf(s.t, "verb %s is unknown", d.Cmd)
	}
	fmt.Fprintln(w, s.e.Stats())
}

func (s *scenario) start(d *datadriven.TestData, w *strings.Builder) {
	cfg := engine.Config{
		Timing: perfmodel.Linear{PrefillBase: 10 * time.Millisecond, PrefillToken: time.Millisecond, DecodeBase: 5 * time.Millisecond},
	}
	cfg.MaxNumSeqs = 4
	for key, field := range map[string]*int{"blocks": &cfg.Blocks, "block": &cfg.BlockSize, "seqs": &cfg.MaxNumSeqs,
		"tokens": &cfg.MaxNumBatchedTokens, "len": &cfg.MaxModelLen, "queue": &cfg.MaxWaiting} {
		d.MaybeScanArgs(s.t, key, field)
	}
	cfg.LoadAll = d.HasArg("loadall")
	read := time.Millisecond
	d.MaybeScanArgs(s.t, "read", &read)
	for i, tier := range []fleet.Tier{fleet.Host, fleet.Disk} {
		blocks := 0
		d.MaybeScanArgs(s.t, tier.String(), &blocks)
		if blocks > 0 {
			cfg.Tiers = append(cfg.Tiers, engine.Tier{Tier: tier, Blocks: blocks, Read: read * []time.Duration{1, 10}[i], Write: time.Millisecond})
		}
	}
	var err error
	if s.e, err = engine.New(cfg); err != nil {
		fmt.Fprintln(w, err)
	}
	s.by, s.labels = map[string]*engine.Request{}, map[kvevent.EngineHash]string{}
}

func (s *scenario) submit(d *datadriven.TestData, w *strings.Builder) {
	name := d.CmdArgs[0].Key
	n := len(s.by) + 1
	r := &engine.Request{Owner: name, Next: func(i int) (uint32, bool) { return uint32(100*n + i), false }}
	arg, _ := d.Arg("prompt")
	for _, span := range strings.Split(arg.Vals[0], ",") {
		from, to, _ := strings.Cut(span, "-")
		a, _ := strconv.Atoi(from)
		b, err := strconv.Atoi(to)
		if err != nil {
			b = a
		}
		for i := a; i <= b; i++ {
			r.Prompt = append(r.Prompt, uint32(i))
		}
	}
	d.MaybeScanArgs(s.t, "max", &r.MaxTokens)
	d.MaybeScanArgs(s.t, "salt", &r.Salt)
	d.MaybeScanArgs(s.t, "lora", &r.LoRA)
	d.MaybeScanArgs(s.t, "delivered", &r.Delivered)
	r.WholePrompt = d.HasArg("whole")
	s.by[name] = r
	if err := s.e.Submit(r); err != nil {
		fmt.Fprintln(w, err)
	}
}

func (s *scenario) begin(w *strings.Builder) {
	end, ok := s.e.Begin(s.now)
	if !ok {
		s.end = time.Time{}
		fmt.Fprintln(w, "idle")
		if at, ok := s.e.Wake(); ok {
			s.now = at
			fmt.Fprintf(w, "a load ends at %d ms\n", at.UnixMilli())
		}
		return
	}
	s.end = end
	fmt.Fprintf(w, "pass %d-%d ms\n", s.now.UnixMilli(), end.UnixMilli())
}

func (s *scenario) finish(w *strings.Builder) {
	s.now = s.end
	result := s.e.End()
	for _, o := range result.Outputs {
		fmt.Fprintf(w, "  %s emits %d", o.Request.Owner, o.Token)
		if o.Index == 0 {
			fmt.Fprintf(w, ", %d cached", o.Cached)
		}
		fmt.Fprintln(w, [...]string{"", ", ends by length", ", ends by stop"}[o.Done])
	}
	for _, e := range result.Events {
		fmt.Fprintf(w, "  %v", e.Kind)
		for i, h := range e.Hashes {
			if e.Kind == kvevent.Stored && e.Tier == fleet.Device {
				first := e.Tokens[i*e.BlockSize]
				s.labels[h] = fmt.Sprintf("%d-%d", first, e.Tokens[(i+1)*e.BlockSize-1])
			}
			fmt.Fprintf(w, " [%s]", s.labels[h])
		}
		if e.Tier != fleet.Device {
			fmt.Fprintf(w, " on %v", e.Tier)
		}
		if e.HasParent {
			fmt.Fprintf(w, " < [%s]", s.labels[e.Parent])
		}
		if e.Salt != "" {
			fmt.Fprintf(w, " salt %s", e.Salt)
		}
		fmt.Fprintln(w)
	}
}

func steps(d *datadriven.TestData) int {
	if len(d.CmdArgs) == 0 {
		return 1
	}
	n, _ := strconv.Atoi(d.CmdArgs[0].Key)
	return n
}
