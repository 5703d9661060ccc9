package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/sim"
)

// source is an open trace.
type source struct {
	next sim.Source
	name string // of the trace, in errors
	file *os.File
	// How far it is read: in bytes of a file, or in arrivals where their number is known.
	read, size   int64
	taken, total int
}

func (s *source) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}

// Read reads the file and counts.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.file.Read(p)
	s.read += int64(n)
	return n, err
}

// count counts the arrivals that next gives out, and names the trace where it fails.
func (s *source) count(next sim.Source) sim.Source {
	return func() (sim.Arrival, bool, error) {
		s.taken++
		a, ok, err := next()
		if err != nil {
			err = s.named(err)
		}
		return a, ok, err
	}
}

// done is the share of the trace that is read.
func (s *source) done() float64 {
	switch {
	case s.total > 0:
		return float64(s.taken) / float64(s.total)
	case s.size > 0:
		return float64(s.read) / float64(s.size)
	}
	return 0
}

// named puts the trace's name into an error of reading it.
func (s *source) named(err error) error {
	if s.name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// open opens the trace that the flags name.
func (s *replaySpec) open() (*source, error) {
	format := sim.Format(s.format)
	if s.format != "" {
		var err error
		if format, err = sim.ParseFormat(s.format); err != nil {
			return nil, fmt.Errorf("--format: %w", err)
		}
	}
	if format == sim.FormatGenerate {
		s.generated.Seed = s.seed
		next, err := s.generated.Source()
		return &source{next: next, total: s.generated.Requests}, err
	}
	trace := s.trace
	switch {
	case s.decisions != "" && (trace != "" || format != "" && format != sim.FormatDecisions):
		return nil, errors.New("--decisions names a log of decisions: leave --trace and --format away")
	case s.decisions != "":
		trace, format = s.decisions, sim.FormatDecisions
	case trace == "":
		return nil, errors.New("name a trace with --trace FILE or a log with --decisions FILE, or make arrivals with --format generate")
	}
	info, err := os.Stat(trace)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	if info.IsDir() {
		if format != "" && format != sim.FormatAgent {
			return nil, fmt.Errorf("trace %s is a folder: only agents' sessions are", trace)
		}
		return s.openFolder()
	}
	src := &source{name: trace, size: info.Size()}
	if src.file, err = os.Open(trace); err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	if err := s.start(src, format); err != nil {
		src.close()
		return nil, src.named(err)
	}
	return src, nil
}

// start begins to read an open file.
func (s *replaySpec) start(src *source, format sim.Format) (err error) {
	r := bufio.NewReaderSize(src, 64<<10)
	if format == "" {
		head, err := r.Peek(4 << 10)
		if err != nil && err != io.EOF { //nolint:errorlint // Peek returns it as it is
			return err
		}
		if format, err = sim.DetectFormat(head); err != nil {
			return err
		}
	}
	switch format {
	case sim.FormatAzure:
		src.next = sim.Azure(r, s.azureSessions)
	case sim.FormatDecisions:
		src.next, src.total, err = sim.Decisions(r)
		return err
	case sim.FormatAgent:
		cfg, err := s.agents()
		if err != nil {
			return err
		}
		src.next, src.total, err = sim.AgentFile(r, cfg)
		return err
	default:
		src.next = sim.Mooncake(r, s.traceBlock)
	}
	return nil
}

func (s *replaySpec) openFolder() (*source, error) {
	cfg, err := s.agents()
	if err != nil {
		return nil, err
	}
	src := &source{name: s.trace}
	src.next, src.total, err = sim.Agent(os.DirFS(filepath.Clean(s.trace)), cfg)
	if err != nil {
		return nil, src.named(err)
	}
	return src, nil
}

// agents says how text becomes tokens.
func (s *replaySpec) agents() (sim.AgentConfig, error) {
	m, err := modelfile.Load(s.model)
	if err != nil {
		return sim.AgentConfig{}, err
	}
	return sim.AgentConfig{Encode: m.Tokenizer().Encode, Join: s.agentJoin, AtOnce: s.agentSessions}, nil
}
