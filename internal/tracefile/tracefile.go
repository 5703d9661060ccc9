// Package tracefile opens traces from files and folders, in any format of package trace.
package tracefile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/trace"
)

// Options name a trace and how it is read.
type Options struct {
	// Path is a trace, Decisions a decision log. One of them is given, or Format is generate.
	Path, Decisions string
	// Format is a format of package trace; empty means that it is detected.
	Format string

	MooncakeBlock int    // tokens of a block of a Mooncake trace
	AzureSessions bool   // guess sessions of an Azure trace
	AgentModel    string // model whose tokenizer encodes agents' text
	AgentJoin     bool   // see trace.SessionConfig
	AgentSessions int    // see trace.SessionConfig.Concurrent
	Generated     trace.Generated
}

// Trace is a trace that is being read. It belongs to one goroutine.
type Trace struct {
	// Total is the number of arrivals; 0 means that it is not known. A caller that stops earlier may
	// lower it.
	Total int
	// Fleet is the fleet of a decision log; empty for other traces.
	Fleet trace.Fleet

	next trace.Source
	name string // of the file, for errors; empty for generated arrivals
	file *os.File

	// Progress: bytes of the file, or arrivals where their number is known.
	read, size int64
	taken      int
}

// Close closes the file.
func (t *Trace) Close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// Read reads the file and counts the bytes.
func (t *Trace) Read(p []byte) (int, error) {
	n, err := t.file.Read(p)
	t.read += int64(n)
	return n, err
}

// Source returns the arrivals, changed by change, with the file's name in errors. It counts them for Done.
func (t *Trace) Source(change func(trace.Source) trace.Source) trace.Source {
	next := change(t.next)
	return func() (trace.Arrival, bool, error) {
		t.taken++
		a, ok, err := next()
		if err != nil {
			err = t.withName(err)
		}
		return a, ok, err
	}
}

// Done returns the share of the trace that was read.
func (t *Trace) Done() float64 {
	switch {
	case t.Total > 0:
		return float64(t.taken) / float64(t.Total)
	case t.size > 0:
		return float64(t.read) / float64(t.size)
	}
	return 0
}

// withName adds the file's name to an error.
func (t *Trace) withName(err error) error {
	if t.name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", t.name, err)
}

// Open opens a trace. The context bounds the download of a model.
func Open(ctx context.Context, o Options) (*Trace, error) {
	path, format, err := o.choose()
	if err != nil {
		return nil, err
	}
	if format == trace.FormatGenerate {
		next, err := o.Generated.Source()
		return &Trace{next: next, Total: o.Generated.Requests}, err
	}

	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	if info.IsDir() {
		return openFolder(ctx, path, format, &o)
	}

	t := &Trace{name: path, size: info.Size()}
	t.file, err = os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	if err := t.start(ctx, format, &o); err != nil {
		t.Close()
		return nil, t.withName(err)
	}
	return t, nil
}

// choose returns the path and the format. An empty format is to be detected.
func (o *Options) choose() (path string, format trace.Format, err error) {
	if o.Format != "" {
		format, err = trace.ParseFormat(o.Format)
		if err != nil {
			return "", "", fmt.Errorf("--format: %w", err)
		}
	}

	switch {
	case format == trace.FormatGenerate:
		return "", format, nil
	case o.Decisions != "" && (o.Path != "" || format != "" && format != trace.FormatDecisions):
		return "", "", errors.New("--decisions names a decision log: leave --trace and --format away")
	case o.Decisions != "":
		return o.Decisions, trace.FormatDecisions, nil
	case o.Path == "":
		return "", "", errors.New("name a trace with --trace FILE or a log with --decisions FILE, or make arrivals with --format generate")
	}
	return o.Path, format, nil
}

// start begins to read an open file.
func (t *Trace) start(ctx context.Context, format trace.Format, o *Options) (err error) {
	r := bufio.NewReaderSize(t, 64<<10)
	if format == "" {
		head, err := r.Peek(4 << 10)
		if err != nil && err != io.EOF { //nolint:errorlint // Peek returns it unwrapped
			return err
		}
		format, err = trace.DetectFormat(head)
		if err != nil {
			return err
		}
	}

	switch format {
	case trace.FormatAzure:
		t.next = trace.Azure(r, o.AzureSessions)
	case trace.FormatDecisions:
		t.next, t.Total, t.Fleet, err = trace.Decisions(r)
	case trace.FormatAgent:
		var cfg trace.SessionConfig
		cfg, err = o.sessionConfig(ctx)
		if err == nil {
			t.next, t.Total, err = trace.SessionFile(r, cfg)
		}
	case trace.FormatWeka:
		t.next, t.Total, err = trace.Weka(r)
	default:
		t.next = trace.Mooncake(r, o.MooncakeBlock)
	}
	return err
}

// openFolder opens a folder of agents' sessions, or of programs in Weka's format: these files end in .json.
func openFolder(ctx context.Context, path string, format trace.Format, o *Options) (t *Trace, err error) {
	t = &Trace{name: path}
	folder := os.DirFS(filepath.Clean(path))
	programs, _ := fs.Glob(folder, "*.json") // the pattern is right
	switch {
	case format == trace.FormatWeka || format == "" && len(programs) > 0:
		t.next, t.Total, err = trace.WekaFolder(folder)
	case format == trace.FormatAgent || format == "":
		var cfg trace.SessionConfig
		cfg, err = o.sessionConfig(ctx)
		if err != nil {
			return nil, err
		}
		t.next, t.Total, err = trace.Sessions(folder, cfg)
	default:
		return nil, fmt.Errorf("trace %s is a folder: only agents' sessions and Weka's programs may be one", path)
	}
	if err != nil {
		return nil, t.withName(err)
	}
	return t, nil
}

// sessionConfig returns how the text of agents' sessions becomes tokens.
func (o *Options) sessionConfig(ctx context.Context) (trace.SessionConfig, error) {
	m, err := modelfile.Load(ctx, o.AgentModel)
	if err != nil {
		return trace.SessionConfig{}, err
	}
	return trace.SessionConfig{Encode: m.Tokenizer().Encode, Join: o.AgentJoin, Concurrent: o.AgentSessions}, nil
}
