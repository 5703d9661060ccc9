package extproc

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/test/testkit"
)

// asEngine is the variable that makes this test binary a simulated engine: agents start it as one.
const asEngine = "STATOR_TEST_ENGINE"

func TestMain(m *testing.M) {
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // engines of a race-enabled test end at once too
	if os.Getenv(asEngine) != "" {
		if err := simulate(os.Args[1:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = os.Setenv(asEngine, "1")
	testkit.Main(m)
}

// simulate runs a simulated engine with the addresses that an agent gives to `stator sim`.
func simulate(args []string) error {
	flags := map[string]string{}
	for i, arg := range args {
		name, value, inOne := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !inOne && i+1 < len(args) {
			value = args[i+1]
		}
		flags[name] = value
	}

	model, err := modelfile.Load(context.Background(), "builtin:sim")
	if err != nil {
		return err
	}
	cfg := enginesim.Config{
		Listen: flags["listen-address"], Events: flags["kv-events"], Replay: flags["kv-replay"],
		ModelName: "sim", Model: model, Vocabulary: model.Tokenizer(),
	}
	cfg.Engine.Timing = perfmodel.Polynomial{Speedup: 100}
	cfg.Engine.HashSeed = uint64(os.Getpid()) // engines choose a new seed at each start
	s, err := enginesim.New(cfg)
	if err != nil {
		return err
	}
	if err := s.Listen(); err != nil {
		return err
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}
