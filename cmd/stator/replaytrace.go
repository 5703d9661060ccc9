package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/trace"
)

// openTrace is a trace that is being read.
type openTrace struct {
	next trace.Source
	name string // of the file, for errors; empty for generated arrivals
	file *os.File

	// Progress: bytes of the file, or arrivals where their number is known.
	read, size   int64
	taken, total int
}

func (t *openTrace) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// Read reads the file and counts the bytes.
func (t *openTrace) Read(p []byte) (int, error) {
	n, err := t.file.Read(p)
	t.read += int64(n)
	return n, err
}

// count returns next with a count of its arrivals, and with the file's name in its errors.
func (t *openTrace) count(next trace.Source) trace.Source {
	return func() (trace.Arrival, bool, error) {
		t.taken++
		a, ok, err := next()
		if err != nil {
			err = t.withName(err)
		}
		return a, ok, err
	}
}

// done returns the share of the trace that was read.
func (t *openTrace) done() float64 {
	switch {
	case t.total > 0:
		return float64(t.taken) / float64(t.total)
	case t.size > 0:
		return float64(t.read) / float64(t.size)
	}
	return 0
}

// withName adds the file's name to an error.
func (t *openTrace) withName(err error) error {
	if t.name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", t.name, err)
}

// open opens the trace that the flags name.
func (s *replaySpec) open() (*openTrace, error) {
	path, format, err := s.chooseTrace()
	if err != nil {
		return nil, err
	}
	if format == trace.FormatGenerate {
		s.generated.Seed = s.seed
		next, err := s.generated.Source()
		return &openTrace{next: next, total: s.generated.Requests}, err
	}

	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	if info.IsDir() {
		if format != "" && format != trace.FormatAgent {
			return nil, fmt.Errorf("trace %s is a folder: only agents' sessions may be one", path)
		}
		return s.openFolder(path)
	}

	t := &openTrace{name: path, size: info.Size()}
	t.file, err = os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	if err := s.start(t, format); err != nil {
		t.close()
		return nil, t.withName(err)
	}
	return t, nil
}

// chooseTrace returns the path and the format that the flags name. An empty format is to be detected.
func (s *replaySpec) chooseTrace() (path string, format trace.Format, err error) {
	if s.format != "" {
		format, err = trace.ParseFormat(s.format)
		if err != nil {
			return "", "", fmt.Errorf("--format: %w", err)
		}
	}

	switch {
	case format == trace.FormatGenerate:
		return "", format, nil
	case s.decisions != "" && (s.trace != "" || format != "" && format != trace.FormatDecisions):
		return "", "", errors.New("--decisions names a decision log: leave --trace and --format away")
	case s.decisions != "":
		return s.decisions, trace.FormatDecisions, nil
	case s.trace == "":
		return "", "", errors.New("name a trace with --trace FILE or a log with --decisions FILE, or make arrivals with --format generate")
	}
	return s.trace, format, nil
}

// start begins to read an open file.
func (s *replaySpec) start(t *openTrace, format trace.Format) (err error) {
	r := bufio.NewReaderSize(t, 64<<10)
	if format == "" {
		head, err := r.Peek(4 << 10)
		if err != nil && err != io.EOF { //nolint:errorlint // Peek returns it unwrapped
			return err
		}
		if format, err = trace.DetectFormat(head); err != nil {
			return err
		}
	}

	switch format {
	case trace.FormatAzure:
		t.next = trace.Azure(r, s.azureSessions)
	case trace.FormatDecisions:
		t.next, t.total, err = trace.Decisions(r)
	case trace.FormatAgent:
		var cfg trace.SessionConfig
		cfg, err = s.sessionConfig()
		if err == nil {
			t.next, t.total, err = trace.SessionFile(r, cfg)
		}
	default:
		t.next = trace.Mooncake(r, s.traceBlock)
	}
	return err
}

func (s *replaySpec) openFolder(path string) (*openTrace, error) {
	cfg, err := s.sessionConfig()
	if err != nil {
		return nil, err
	}

	t := &openTrace{name: path}
	t.next, t.total, err = trace.Sessions(os.DirFS(filepath.Clean(path)), cfg)
	if err != nil {
		return nil, t.withName(err)
	}
	return t, nil
}

// sessionConfig returns how the text of agents' sessions becomes tokens.
func (s *replaySpec) sessionConfig() (trace.SessionConfig, error) {
	m, err := modelfile.Load(s.model)
	if err != nil {
		return trace.SessionConfig{}, err
	}
	return trace.SessionConfig{Encode: m.Tokenizer().Encode, Join: s.agentJoin, Concurrent: s.agentSessions}, nil
}
