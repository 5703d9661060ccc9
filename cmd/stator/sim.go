package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
)

const simAbout = `Runs one simulated engine with the interfaces of vLLM: OpenAI's HTTP API with server-sent events,
vllm:* metrics, and KV events over ZMQ with a replay socket. It batches, caches and evicts as
vLLM's scheduler does. Its answers are random words.

Embeddings have the form and the length that a request asks for. What needs a model is accepted and ignored:
stop, logprobs, tools and tool_choice, response_format, temperature and other settings of sampling. Paths that
it lacks, such as /v1/rerank, get 404 with an error of OpenAI's form.`

// simFlags are the flags of `stator sim`. Those that are settings of the engine as they stand are in cfg.
type simFlags struct {
	cfg                   enginesim.Config
	name, dir, kind, role string
	doors                 listen.Doors
	aliases, adapters     cli.List
	passes                passFlags
}

func (o *simFlags) addFlags(f *cli.Flags) {
	f.StringVar(&o.name, "name", "sim", "`name` of the engine in its log")
	cfg := &o.cfg
	f.StringVar(&cfg.Listen, "listen-address", "127.0.0.1:8000", "`address` of the HTTP server")

	f.StringVar(&o.doors.CertFile, "tls-cert", "",
		"`file` with the certificate of the HTTP server in PEM; it is read again when it changes")
	f.StringVar(&o.doors.KeyFile, "tls-key", "", "`file` with the key of --tls-cert")
	f.StringVar(&o.doors.ClientCAFile, "tls-client-ca", "", "`file` with the CA of clients' certificates; without it clients need none")

	f.StringVar(&cfg.ModelName, "model", "sim", "`name` that clients use")
	f.Var(&o.aliases, "alias", "further `name` of the model; may be given more than once")
	f.Var(&o.adapters, "adapter", "`name` of a LoRA adapter that is loaded; may be given more than once")
	f.BoolVar(&cfg.LoadAdapters, "load-adapters", false, "load and unload LoRA adapters when clients ask for it, as vLLM does with "+
		"VLLM_ALLOW_RUNTIME_LORA_UPDATING")
	f.StringVar(&o.dir, "model-dir", "builtin:sim", "model `folder`, or hf:ORG/MODEL, whose vocabulary and template it uses")

	f.StringVar(&cfg.Events, "kv-events", "", "ZMQ `endpoint` of its KV events, such as tcp://127.0.0.1:5557 or ipc:///run/events.sock")
	f.StringVar(&cfg.Replay, "kv-replay", "", "ZMQ `endpoint` of the replay of KV events")
	f.StringVar(&cfg.KVStore, "kv-store", "", "`socket` of the store of KV blocks of the node, into which blocks are copied")
	f.StringVar(&cfg.KVTransfer, "kv-transfer", "", "`address` from which other engines fetch KV caches; port 0 chooses a free one")
	f.StringVar(&o.kind, "kv-transfer-kind", fleet.TransferNixl.String(), "`handshake` of these transfers: nixl and p2p are vLLM's "+
		"NixlConnector and p2p tier, bootstrap is SGLang's, and context is TensorRT-LLM's")
	f.StringVar(&o.role, "kv-transfer-role", "", "`half` of each request that an engine of kind bootstrap serves: prefill or decode")
	f.DurationVar(&cfg.Lease, "kv-transfer-lease", 0,
		"how long the blocks of a prompt are kept for an engine that does not fetch them (default that of the real engine)")
	f.DurationVar(&cfg.TransferTimeout, "kv-transfer-timeout", 0, "how long to wait for the other engine (default that of the real engine)")

	o.passes.addFlags(f, &cfg.Engine)
	f.BoolVar(&cfg.NoCaching, "no-prefix-caching", false, "compute each prompt in full")
	f.IntVar(&cfg.StreamInterval, "stream-interval", 1, "tokens in one write of a stream; the first and the last are written at once")
	f.IntVar(&cfg.AnswerTokens, "answer-tokens", 0,
		"mean length of answers, if max_tokens does not end them before (default max_tokens, or 64)")
	f.IntVar(&cfg.ThinkTokens, "think-tokens", 0, "first tokens of an answer that are thinking, and are sent apart from its text")
	f.Uint64Var(&cfg.Seed, "seed", 0, "determines the answers, and the noise")
	f.DurationVar(&cfg.StartDelay, "startup", 0, "how long the engine loads before it is ready")
	f.DurationVar(&cfg.Drain, "drain-time", 2*time.Second, "how long running requests may continue when it stops")
}

func runSim(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "sim", simAbout)
	var o simFlags
	o.addFlags(f)
	lf := cli.AddLogFlags(f)
	if err := f.Read(args); err != nil {
		return err
	}
	log, err := lf.Logger(env.err)
	if err != nil {
		return err
	}
	if err := o.settle(ctx, f, log); err != nil {
		return err
	}

	s, err := enginesim.New(o.cfg)
	if err != nil {
		return err
	}
	if err := s.Listen(); err != nil {
		return fmt.Errorf("start engine %s: %w", o.name, err)
	}
	return s.Run(ctx)
}

// settle checks the flags, loads the model, and completes the settings of the engine.
func (o *simFlags) settle(ctx context.Context, f *cli.Flags, log *slog.Logger) (err error) {
	cfg := &o.cfg
	cfg.OwnLength = cfg.AnswerTokens > 0
	if err := o.doors.Check(); err != nil {
		return f.UsageError("%v", err)
	}
	if o.doors.CertFile != "" {
		cfg.TLS, err = o.doors.ForServer(log, o.doors.ClientCAFile, "http/1.1")
		if err != nil {
			return err
		}
	}
	cfg.KVTransferKind, err = fleet.ParseTransfer(o.kind)
	if err != nil || cfg.KVTransferKind == fleet.NoTransfer {
		return f.UsageError("--kv-transfer-kind must be nixl, p2p, bootstrap or context")
	}
	cfg.KVTransferRole, err = fleet.ParseRole(o.role)
	if err != nil {
		return f.UsageError("--kv-transfer-role must be prefill or decode")
	}
	if err := o.passes.apply(f, &cfg.Engine); err != nil {
		return err
	}
	model, err := modelfile.Load(ctx, o.dir)
	if err != nil {
		return err
	}

	cfg.Model, cfg.Root = model, strings.TrimPrefix(o.dir, "hf:")
	cfg.Vocabulary = model.Tokenizer()
	cfg.Aliases, cfg.Adapters = o.aliases, o.adapters
	cfg.Logger = log.With("worker", o.name)
	cfg.Engine.Noise.Seed = cfg.Seed
	// Real engines draw a new seed at each start, too, unless they fetch each other's blocks by their hashes.
	if cfg.KVTransferKind != fleet.TransferP2P && cfg.KVStore == "" {
		cfg.Engine.HashSeed = rand.Uint64()
	}
	return nil
}

// passFlags are flags of how large an engine is and how long its passes take.
type passFlags struct {
	speed  float64
	scale  int
	stalls bool
}

func (p *passFlags) addFlags(f *cli.Flags, cfg *engine.Config) {
	f.IntVar(&cfg.Blocks, "blocks", 16384, "KV capacity in blocks")
	f.IntVar(&cfg.BlockSize, "block-size", 16, "tokens in a block")
	f.IntVar(&cfg.MaxNumSeqs, "max-num-seqs", 256, "requests that run at once")
	f.IntVar(&cfg.MaxNumBatchedTokens, "max-num-batched-tokens", 8192, "tokens of one pass")
	f.Float64Var(&p.speed, "engine-speedup", 1, "divides the time of every pass; 10 is ten times as fast")
	f.IntVar(&p.scale, "token-scale", 1, "compute each token in the time of this many, for traces whose prompts and answers were shortened")
	f.Float64Var(&cfg.Noise.Sigma, "noise", 0, "σ of the log-normal factor of each pass, whose mean is 1")
	f.BoolVar(&p.stalls, "stalls", false, "stall for 100 to 300 ms, every 15 s of work")
	f.IntVar(&cfg.Noise.ColdPrompts, "slow-start", 0, "how many of the first prompts take 1.5 s longer each")
}

// apply writes the flags that are no settings of the engine themselves.
func (p *passFlags) apply(f *cli.Flags, cfg *engine.Config) error {
	if p.speed <= 0 || p.scale < 1 {
		return f.UsageError("--engine-speedup must be positive, and --token-scale at least 1")
	}
	cfg.Timing = perfmodel.Scaled{Timing: perfmodel.Polynomial{Speedup: p.speed}, Tokens: p.scale}
	cfg.Noise.ColdTime = engine.MeasuredColdTime
	if p.stalls {
		cfg.Noise.StallEvery = engine.MeasuredStallEvery
		cfg.Noise.StallFrom = engine.MeasuredStallFrom
		cfg.Noise.StallTo = engine.MeasuredStallTo
	}
	return nil
}
