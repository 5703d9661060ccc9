// Command dynamo plays a gateway in front of NVIDIA Dynamo: two of its mockers, each behind a frontend of Dynamo. It compares the
// cached tokens that the router promised with those that Dynamo reports in its answers. `make test-dynamo` runs it.
//
// It ends with an error if a bar is not met. Its counts do not depend on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("dynamo", run) }

// modelName is the name under which frontends and gateway serve the model. Names of models often have a slash.
const modelName = "stator/tiny"

// blockSize is the mockers' block size in tokens.
const blockSize = 64

// The conversations. Each begins with another text, and each turn sends all turns before it again.
const (
	conversations, turns = 8, 5
	leastCached          = 31 // of the later turns
)

// bench is one run.
type bench struct {
	python, stator, envoy, vocabulary string
	report                            string
	mostDifference                    float64
	folder                            string // for logs, configurations and the model
	model                             string
	progress                          io.Writer
}

func run(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	b := &bench{progress: progress}
	f := flag.NewFlagSet("dynamo", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&b.python, "python", ".venv-dynamo/bin/python", "Python `program` with ai-dynamo")
	f.StringVar(&b.stator, "stator", "bin/stator", "our `program`")
	f.StringVar(&b.envoy, "envoy", "", "`path` of another Envoy (default: the one in .venv)")
	f.StringVar(&b.vocabulary, "vocabulary", ".oracle/vocabularies/qwen3", "`folder` with tokenizer.json and tokenizer_config.json")
	f.Float64Var(&b.mostDifference, "most-difference", 0.02, "largest difference of promised and real cached tokens, as a `share`")
	f.StringVar(&b.report, "report", "", "replace the figures in this `file`")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}

	b.folder, err = os.MkdirTemp("", "stator-dynamo-")
	if err != nil {
		return err
	}
	if err := b.play(ctx, out); err != nil {
		return fmt.Errorf("%w\nlogs are in %s", err, b.folder)
	}
	return os.RemoveAll(b.folder)
}

// play runs everything, prints the report, and fails if a bar was not met.
func (b *bench) play(ctx context.Context, out io.Writer) error {
	var err error
	b.model, err = makeModel(b.vocabulary, filepath.Join(b.folder, "tiny"))
	if err != nil {
		return err
	}

	var workers []*worker
	defer func() {
		for _, w := range workers {
			w.stop()
		}
	}()
	for _, name := range []string{"a", "b"} {
		w, err := b.startWorker(name)
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	for _, w := range workers {
		b.progressf("wait for worker %s", w.name)
		if err := w.await(ctx); err != nil {
			return err
		}
	}

	g, err := b.startGateway(ctx, workers)
	if err != nil {
		return err
	}
	defer g.Stop()
	result, err := b.converse(ctx, g)
	if err != nil {
		return err
	}
	result.doctor = b.examine(ctx, g)
	result.version, err = workers[0].version(ctx)
	if err != nil {
		return err
	}
	if err := b.endWorker(ctx, g, workers[0], result); err != nil {
		return err
	}
	return b.print(out, result)
}

// print writes the report, and returns an error that lists the bars that were not met.
func (b *bench) print(out io.Writer, r *result) error {
	text, missed := r.report(b.mostDifference)
	if _, err := io.WriteString(out, text); err != nil {
		return err
	}
	if len(missed) > 0 {
		return fmt.Errorf("not met: %s", strings.Join(missed, "; "))
	}
	if b.report == "" {
		return nil
	}
	return replaceFigures(b.report, text)
}

// The lines around the figures in a page.
const (
	figuresBegin = "<!-- figures:begin -->\n"
	figuresEnd   = "<!-- figures:end -->\n"
)

// replaceFigures writes the figures into a page.
func replaceFigures(path, text string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, hasBegin := strings.Cut(string(page), figuresBegin)
	_, after, hasEnd := strings.Cut(rest, figuresEnd)
	if !hasBegin || !hasEnd {
		return errors.New(path + " has no lines that mark its figures")
	}
	return os.WriteFile(path, []byte(before+figuresBegin+text+figuresEnd+after), 0o644)
}

func (b *bench) progressf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
}
