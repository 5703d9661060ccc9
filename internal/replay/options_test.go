package replay

import (
	"flag"
	"io"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
)

// noFolder is the folder of a profile that has no files.
func noFolder(string) fs.FS { return fstest.MapFS{} }

// parseOptions returns the options of a command line, or the error of a flag.
func parseOptions(line string) (*Options, error) {
	f := flag.NewFlagSet("replay", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	o := NewOptions(f)
	o.AddArrivalFlags()
	o.AddFleetFlags(func(_ string, define func()) { define() })

	// Flags of the commands, which are no settings of a run.
	f.Bool("json", false, "")
	f.String("trace", "", "")
	return o, f.Parse(strings.Fields(line))
}

// TestTileRepeatsTheFirstRows plays the first two of three rows three times.
func TestTileRepeatsTheFirstRows(t *testing.T) {
	o, err := parseOptions("--rows 2 --tile 3")
	if err != nil {
		t.Fatal(err)
	}
	next := o.Change(trace.List(make([]trace.Arrival, 3)))
	for i := range 7 {
		_, ok, err := next()
		if err != nil || ok != (i < 6) {
			t.Fatalf("arrival %d: %v, %v", i, ok, err)
		}
	}
	if done := o.Done(0.5); done != 1 {
		t.Errorf("%v of the repetitions were read, want all", done)
	}
}

// TestFlagsBecomeTheSimulation checks that flags are in the simulation, and that others have their defaults.
func TestFlagsBecomeTheSimulation(t *testing.T) {
	o, err := parseOptions("--seed 7 --workers 2 --policy random --timing fixed:40ms,8ms --queue 5 --queue-order wspt " +
		"--slow 1=2.5 --restart 0@10m+30s --cost dynamo --prefill-load-scale 16 " +
		"--noise 0.3 --stalls --slow-start 1=3 --slow-spell 0=1.5@5m+10m")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := o.Simulation(noFolder)
	if err != nil {
		t.Fatal(err)
	}

	if cfg.Seed != 7 || cfg.Workers != 2 || cfg.Policy != "random" || cfg.Replicas != 1 || cfg.ArrivalSpeedup != 1 {
		t.Errorf("%+v", cfg)
	}
	if want := (perfmodel.Fixed{PrefillTime: 40 * time.Millisecond, DecodeTime: 8 * time.Millisecond}); cfg.Engine.Timing != want {
		t.Errorf("timing %+v", cfg.Engine.Timing)
	}
	if cfg.Queue == nil || cfg.Queue.Limit.Requests != 5 || cfg.Queue.Classes[0].Order != queue.WSPT {
		t.Errorf("queue %+v", cfg.Queue)
	}
	restart := sim.Restart{At: 10 * time.Minute, After: 30 * time.Second}
	if len(cfg.Restarts) != 1 || cfg.Restarts[0] != restart || cfg.Slow[1] != 2.5 {
		t.Errorf("restarts %+v, slow %v", cfg.Restarts, cfg.Slow)
	}
	noise := sim.Noise{
		Sigma: 0.3, Stalls: true, SlowStarts: map[int]int{1: 3},
		SlowSpells: []sim.SlowSpell{{Worker: 0, Factor: 1.5, At: 5 * time.Minute, Span: 10 * time.Minute}},
	}
	if !reflect.DeepEqual(cfg.Noise, noise) {
		t.Errorf("noise %+v", cfg.Noise)
	}
	if weights, ok := cfg.Cost.(*cost.Weights); !ok || weights.PrefillLoadScale != 16 {
		t.Errorf("cost %+v", cfg.Cost)
	}
}

// TestRoleFlagsBecomeTheSimulation checks the flags of workers that only prefill or only decode, and their defaults.
func TestRoleFlagsBecomeTheSimulation(t *testing.T) {
	o, err := parseOptions("--prefill-workers 3 --prefill-at remote --prefill-gpus 2 --nodes 2 --network-bandwidth 1e9 --transfer-base 2ms")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := o.Simulation(noFolder)
	if err != nil {
		t.Fatal(err)
	}
	want := sim.Transfer{Base: 2 * time.Millisecond, TokenBytes: 131072, NodeBandwidth: 80e9, NetworkBandwidth: 1e9, Nodes: 2}
	if cfg.Prefill != 3 || cfg.PrefillAt != "remote" || cfg.GPUs != 1 || cfg.PrefillGPUs != 2 || cfg.Transfer != want {
		t.Errorf("%+v", cfg)
	}

	o, err = parseOptions("--prefill-workers 3 --prefill-at nowhere")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err = o.Simulation(noFolder)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sim.Run(cfg, trace.List(nil)); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("an unknown place: %v", err)
	}
}

// TestSettingsCanBeGivenAgain reads the settings of a run as its flags: the settings stay the same. They have
// no path of the trace and no flags of the output.
func TestSettingsCanBeGivenAgain(t *testing.T) {
	const want = "--delay-decode 0.5 --no-events --restart 0@1m0s+30s 1@2m0s+30s --slow 0=3 1=2 --slow-spell 3=1.5@5m0s+10m0s --slow-start 1=3 --trace a.jsonl"
	o, err := parseOptions("--json --trace some/folder/a.jsonl --slow 1=2 --slow-start 1=3 --slow-spell 3=1.5@5m+10m --slow 0=3 --restart 0@1m+30s --restart 1@2m+30s " +
		"--no-events --delay-decode 0.5")
	if err != nil || o.Settings() != want {
		t.Fatalf("%v, %q, want %q", err, o.Settings(), want)
	}

	// Each value of a flag that may be given more than once is read again as one text, as in a comparison.
	again, _ := parseOptions("")
	o.flags.Visit(func(f *flag.Flag) {
		if err := again.flags.Set(f.Name, f.Value.String()); err != nil {
			t.Error(err)
		}
	})
	if again.Settings() != want {
		t.Errorf("read again: %q", again.Settings())
	}
}

// TestChangeCutsAndDelaysArrivals plays two of three arrivals, each later than in the trace by at most the jitter.
func TestChangeCutsAndDelaysArrivals(t *testing.T) {
	o, err := parseOptions("--rows 2 --jitter 1s --seed 3")
	if err != nil {
		t.Fatal(err)
	}
	left := 3
	next := o.Change(func() (trace.Arrival, bool, error) {
		left--
		return trace.Arrival{}, left >= 0, nil
	})

	var delays []time.Duration
	for {
		a, ok, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		delays = append(delays, a.At)
	}
	if len(delays) != 2 || delays[0] < 0 || delays[1] > time.Second || delays[0]+delays[1] == 0 {
		t.Errorf("delays %v", delays)
	}
}

// TestRefusedFlags refuses values at the flag, or at the simulation where they depend on each other.
func TestRefusedFlags(t *testing.T) {
	for line, want := range map[string]string{
		"--restart 1":                    "write it like 2@10m+30s",
		"--slow 1":                       "write it like 0=3",
		"--slow-start 1":                 "write it like 0=3",
		"--slow-spell 1=2@3m":            "write it like 3=1.5@5m+10m",
		"--rows -1":                      "--rows and --jitter must be at least 0",
		"--jitter -1s":                   "--rows and --jitter must be at least 0",
		"--tile 20000":                   "--tile and --day-curve: the trace is played 20000 times: it must be 1 to 10000",
		"--day-curve 2":                  "--tile and --day-curve: swing 2: it must be from 0 to 1",
		"--timing fixed:1":               `--timing: "fixed:1": write it like fixed:40ms,8ms`,
		"--timing profile:nowhere":       "--timing: load profile: there is none of",
		"--timing steam":                 `--timing: "steam" is unknown: use polynomial`,
		"--timing profile:":              `--timing: "profile:" is unknown`,
		"--cost best":                    `--cost is "best": use delay or dynamo`,
		"--queue 1 --queue-order lifo":   "--queue-order: ",
		"--prefill-load-scale 2":         "--prefill-load-scale: these weights are of --cost dynamo and have no effect with --cost delay",
		"--cost dynamo --delay-decode 1": "--delay-decode: these weights are of --cost delay and have no effect with --cost dynamo",
		"--overlap-decay much":           "invalid value",
	} {
		o, err := parseOptions(line)
		if err == nil {
			_, err = o.Simulation(noFolder)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
