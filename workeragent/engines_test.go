package workeragent

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/models"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// role is the variable that makes this test binary an engine, which an agent starts.
const role = "STATOR_AGENT_TEST_ROLE"

func TestMain(m *testing.M) {
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // engines of a race-enabled test end at once too
	if len(os.Args) > 1 && os.Args[1] == engine.HoldCommand {
		os.Exit(child.Hold(os.Args[2:]))
	}
	if os.Getenv(role) != "" {
		if err := play(os.Args[1:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = os.Setenv(role, "engine")
	testkit.Main(m)
}

// play runs an engine: a simulated one, or one whose behaviour the test controls.
//
//	sim FLAGS          the simulated engine
//	obey PORT          serves /health, whose status POST /set?health=N sets; /exit ends it
//	stubborn PORT      the same, but SIGTERM does not end it
//	sharing PORT NAME  the same, with a file NAME-… of shared memory, a socket NAME.sock, and a child, with which it ends
//	-m MODULE FLAGS    a slow vLLM: it serves /health when another program has had its --port
//	broken             prints why, and ends
//	mistaken           prints a common mistake and 30 lines after it, and ends
//	loading            prints how far it has loaded, and goes on without serving
func play(args []string) error {
	switch args[0] {
	case "sim":
		return simulate(args[1:])
	case "-m":
		port := args[slices.Index(args, "--port")+1]
		for post("127.0.0.1:"+port, "/health", "") != "ok" {
			time.Sleep(10 * time.Millisecond)
		}
		for ; ; time.Sleep(10 * time.Millisecond) {
			_ = obey(port) // it returns while the port is taken
		}
	case "sharing":
		return shareAndObey(args[1], args[2])
	case "child":
		time.Sleep(time.Hour)
	case "broken":
		fmt.Println("loading weights")
		return fmt.Errorf("out of memory")
	case "mistaken":
		fmt.Println("ModuleNotFoundError: No module named 'vllm'")
		for i := range 30 {
			fmt.Println("line", i)
		}
		return fmt.Errorf("see root cause above")
	case "loading":
		fmt.Print("\rLoading safetensors checkpoint shards:  45% Completed | 9/20\r")
		time.Sleep(time.Minute)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	return obey(args[1])
}

func obey(port string) error {
	var health atomic.Int64
	health.Store(http.StatusOK)
	fmt.Println("serving on", port)
	return http.ListenAndServe("127.0.0.1:"+port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			w.WriteHeader(int(health.Load()))
		case "/set":
			n, _ := strconv.Atoi(r.URL.Query().Get("health"))
			health.Store(int64(n))
		case "/exit":
			fmt.Println("asked to exit")
			os.Exit(3)
		}
	}))
}

// simulate runs the simulated engine with the flags that the agent gives to `stator sim`.
func simulate(args []string) error {
	m, err := prompt.Load(models.Sim())
	if err != nil {
		return err
	}
	cfg := enginesim.Config{Model: m, Vocabulary: m.Tokenizer()}
	f := flag.NewFlagSet("sim", flag.ContinueOnError)
	f.StringVar(&cfg.Listen, "listen-address", "", "")
	f.StringVar(&cfg.ModelName, "model", "", "")
	f.StringVar(&cfg.Events, "kv-events", "", "")
	f.StringVar(&cfg.Replay, "kv-replay", "", "")
	f.IntVar(&cfg.Engine.Blocks, "blocks", 0, "")
	f.IntVar(&cfg.Engine.BlockSize, "block-size", 0, "")
	for _, ignored := range []string{"name", "model-dir", "log-level"} {
		f.String(ignored, "", "")
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	cfg.Engine.Timing = perfmodel.Polynomial{Speedup: 100}
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

var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}

// post sends an engine a request, and returns its answer. An engine that exits because of it does not answer.
func post(address, path, body string) string {
	resp, err := client.Post("http://"+address+path, "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}
