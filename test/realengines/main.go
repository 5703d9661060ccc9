// Command realengines plays a gateway in front of real vLLM, and compares the router's expectations with the
// engines' reports. `make test-vllm` runs it and writes docs/results/real-engines.md.
//
//	section    engines                        result
//	llama      two llama.cpp                  prompt tokens are as expected, and conversations stay
//	upto       llama.cpp, and vLLM            stator up --to needs no configuration, and has its first answer within 10 s
//	truth      two vLLM with room for everything   prompt tokens, cached tokens and token ids are as expected
//	start      the same, one of them slow     an engine that is slow at first gets its share later
//	clients    the same                       clients' libraries work, and paths that are not parsed
//	models     the same, and one for vectors  requests for each of two models go to its engines
//	endpoints  the same, and llama.cpp        every endpoint is exact, or goes by session or load for a reason
//	failures   the same, one of them ended    a dead or frozen engine gets few requests
//	describe   two, one with two ranks        block sizes and ranks are found, and states of engines are true within 2 s
//	migration  two that compute with 32 bits  streams that are cut anywhere go on with the same tokens
//	speculate  two with a deeper model        speculative prefills make later turns faster, and nothing else slower
//	load       two with eight slots           kv beside other policies in closed loops of `vllm bench serve`
//	eviction   two with small caches          promises about caches that overflow are kept
//	adapters   two for LoRA adapters          adapters are found, loaded, and kept apart
//	disaggregated  two with NixlConnector  one computes prompts, the other one decodes
//	hostile    the same                       bodies that ask engines for transfers reach none
//	p2p        two with OffloadingConnector   the same with both legs at once, and prefixes are fetched
//	store      with StatorConnector           blocks come from all tiers; failed loads, other weights and a stopped store are harmless
//
// Counts and equalities are facts wherever it runs. Times were taken with a tiny model on processors, and compare rows
// of one run only. It ends with an error if a bar is not met.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("realengines", run) }

// section is a part of the report, and the function that makes it.
type section struct {
	name   string
	blocks int // of an engine's cache; 0 for a section that starts its own engines
	run    func(context.Context, *bench, []*engine, *page) error
}

// sections are in the order in which they run. Those with equal engines follow each other, because an engine needs a
// minute of CPU time to start.
var sections = []section{
	{"llama", 0, llamaSection},
	{"upto", 0, uptoSection},
	{"truth", largeCache, truthSection},
	{"start", largeCache, slowStartSection},
	{"clients", largeCache, clientsSection},
	{"models", largeCache, modelsSection},
	{"endpoints", largeCache, endpointsSection},
	{"failures", largeCache, failureSection},
	{"describe", 0, describeSection},
	{"migration", 0, migrationSection},
	{"speculate", 0, speculateSection},
	{"load", 0, loadSection},
	{"eviction", smallCache, evictionSection},
	{"adapters", 0, adapterSection},
	{"disaggregated", 0, disaggregatedSection},
	{"hostile", 0, hostileSection},
	{"p2p", 0, p2pSection},
	{"store", 0, storeSection},
}

// largeCache is the number of blocks of an engine that evicts nothing here: 131,072 tokens.
const largeCache = 4096

// largeBatch is the number of requests that such an engine runs at once.
const largeBatch = 16

// bench is one run.
type bench struct {
	vllm, stator, envoy, model, pages string
	llamaPython, llamaModel           string
	deep                              string // folder of another model that model.py makes
	clientsPython, vectors            string
	report, endpoints                 string
	seed                              uint64
	rounds                            int      // of the sections load and speculate
	only                              []string // empty for all sections
	running                           []*engine
	folder                            string // for logs and configurations
	version                           string // of the engines
	begun                             time.Time
	out, progress                     io.Writer
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	b := &bench{begun: time.Now(), out: out, progress: progress}
	f := flag.NewFlagSet("realengines", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&b.vllm, "vllm", ".venv-vllm/bin/vllm", "vLLM's `program`")
	f.StringVar(&b.stator, "stator", "bin/stator", "our `program`")
	f.StringVar(&b.envoy, "envoy", "", "`path` of another Envoy (default: the one in .venv)")
	f.StringVar(&b.model, "model", ".oracle/realengines/tiny", "`folder` of the model that model.py makes")
	f.StringVar(&b.deep, "deep-model", ".oracle/realengines/deep", "`folder` of the model that model.py makes with --deep")
	f.StringVar(&b.llamaPython, "llama-python", ".venv-oracle/bin/python", "Python `program` with xllamacpp")
	f.StringVar(&b.llamaModel, "llama-model", ".oracle/realengines/tiny.gguf", "`file` of the model that llamamodel.py makes")
	f.StringVar(&b.clientsPython, "clients-python", ".venv-clients/bin/python", "Python `program` with langchain-openai and litellm")
	f.StringVar(&b.vectors, "vectors-model", ".oracle/realengines/tiny-vectors", "`folder` of the model that vectorsmodel.py makes")
	f.StringVar(&b.pages, "pages", "docs", "`folder` of pages whose text prompts are made of")
	f.StringVar(&b.report, "report", "", "write the report to `file`; with --only, replace these sections in it")
	f.StringVar(&b.endpoints, "endpoints", "", "write the results of the section endpoints to `file`, in place of earlier ones")
	f.Uint64Var(&b.seed, "seed", 11, "seed of the requests")
	f.IntVar(&b.rounds, "rounds", 6, "rounds of the sections load and speculate")
	f.Func("only", "run these `sections` alone: "+names(), func(list string) error {
		b.only = strings.Split(list, ",")
		for _, name := range b.only {
			if !slices.ContainsFunc(sections, func(s section) bool { return s.name == name }) {
				return fmt.Errorf("there is no section %q; there are %s", name, names())
			}
		}
		return nil
	})
	f.Func("engine", "take a running `engine`, ADDRESS,EVENTS,REPLAY, and start none; for each one", func(text string) error {
		parts := strings.Split(text, ",")
		if len(parts) != 3 {
			return errors.New("it is not an address and two endpoints")
		}
		name := string(rune('a' + len(b.running)))
		b.running = append(b.running, &engine{name: name, address: parts[0], events: parts[1], replay: parts[2]})
		return nil
	})
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}

	var err error
	b.model, err = filepath.Abs(b.model) // paths in a configuration are relative to its folder
	if err != nil {
		return err
	}
	b.folder, err = os.MkdirTemp("", "stator-realengines-")
	if err != nil {
		return err
	}
	if err := b.runSections(ctx); err != nil {
		return fmt.Errorf("%w\nlogs are in %s", err, b.folder)
	}
	return os.RemoveAll(b.folder)
}

// names lists the sections.
func names() string {
	var list []string
	for _, s := range sections {
		list = append(list, s.name)
	}
	return strings.Join(list, ",")
}

// runSections runs the chosen sections, prints the report, and fails if a bar was not met.
func (b *bench) runSections(ctx context.Context) error {
	p := newPage()
	var engines []*engine
	stop := func() {
		stopAll(engines)
		engines = nil
	}
	defer func() { stop() }()

	blocks := 0
	for _, s := range sections {
		if len(b.only) > 0 && !slices.Contains(b.only, s.name) {
			continue
		}
		if s.blocks != blocks {
			stop()
			var err error
			engines, err = b.startEngines(ctx, s.blocks, largeBatch)
			if err != nil {
				return err
			}
			blocks = s.blocks
		}
		b.progressf("%s", s.name)
		begun := time.Now()
		if err := s.run(ctx, b, engines, p); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		p.finish(b, begun)
	}
	if _, err := io.WriteString(b.out, p.b.String()); err != nil {
		return err
	}
	if err := b.writeReport(p.b.String()); err != nil {
		return err
	}
	if len(p.missed) > 0 {
		return fmt.Errorf("not met: %s", strings.Join(p.missed, "; "))
	}
	return nil
}

// writeReport writes the report. A run of some sections replaces these in the report of an earlier run.
func (b *bench) writeReport(text string) error {
	if b.report == "" {
		return nil
	}
	earlier, err := os.ReadFile(b.report)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(b.only) > 0 {
		text = merge(string(earlier), text)
	}
	return os.WriteFile(b.report, []byte(text), 0o644)
}

// startEngines starts two engines, unless some run already or no blocks are wanted, and waits until they are healthy.
func (b *bench) startEngines(ctx context.Context, blocks, slots int) (engines []*engine, err error) {
	if blocks == 0 {
		return nil, nil
	}
	if len(b.running) > 0 {
		return slices.Clone(b.running), b.awaitEngines(ctx, b.running)
	}
	return b.startPair(ctx, engineConfig{vllm: b.vllm, model: b.model, folder: b.folder, blocks: blocks, maxSeqs: slots})
}

// startPair starts two engines, and waits until they are healthy.
func (b *bench) startPair(ctx context.Context, cfg engineConfig) (engines []*engine, err error) {
	defer func() {
		if err != nil {
			stopAll(engines)
			engines = nil
		}
	}()
	for _, name := range []string{"a", "b"} {
		e, err := startEngine(name, cfg)
		if err != nil {
			return engines, err
		}
		engines = append(engines, e)
	}
	return engines, b.awaitEngines(ctx, engines)
}

// stopAll stops engines.
func stopAll(engines []*engine) {
	for _, e := range engines {
		e.stop()
	}
}

// awaitEngines waits until engines are healthy, and reads their version.
func (b *bench) awaitEngines(ctx context.Context, engines []*engine) (err error) {
	for _, e := range engines {
		b.progressf("wait for engine %s", e.name)
		if err := e.await(ctx); err != nil {
			return err
		}
		b.version, err = e.version(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

// startGateway starts a gateway in front of engines whose caches are empty.
func (b *bench) startGateway(ctx context.Context, engines []*engine, router string) (*gateway, error) {
	return b.startGatewayWith(ctx, b.gatewayConfig(router), engines)
}

// startGatewayWith is startGateway with a configuration of the section's own.
func (b *bench) startGatewayWith(ctx context.Context, cfg gatewayConfig, engines []*engine) (*gateway, error) {
	if err := forgetAll(ctx, engines); err != nil {
		return nil, err
	}
	return startGateway(ctx, cfg, engines)
}

func (b *bench) gatewayConfig(router string) gatewayConfig {
	return gatewayConfig{stator: b.stator, envoy: b.envoy, model: b.model, folder: b.folder, block: blockSize, router: router}
}

func (b *bench) progressf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, "%5.0f s  "+format+"\n", append([]any{time.Since(b.begun).Seconds()}, args...)...)
}

func truthSection(ctx context.Context, b *bench, engines []*engine, p *page) error {
	g, err := b.startGateway(ctx, engines, "")
	if err != nil {
		return err
	}
	defer g.Stop()
	t, err := runTruth(ctx, b, g)
	if err != nil {
		return err
	}
	t.print(p)
	return nil
}

func evictionSection(ctx context.Context, b *bench, engines []*engine, p *page) error {
	var runs []*eviction
	for _, concurrent := range []int{1, 8} {
		g, err := b.startGateway(ctx, engines, "")
		if err != nil {
			return err
		}
		e, err := runEviction(ctx, b, g, 12, 6, concurrent)
		g.Stop()
		if err != nil {
			return err
		}
		runs = append(runs, e)
	}
	printEvictions(p, runs)
	return nil
}
