package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// store is a file to which outcomes are written as soon as their cell is played, one line of JSON each. It is safe for concurrent
// use. The zero store has no file and keeps nothing.
type store struct {
	mu   sync.Mutex
	file *os.File
}

// openStore opens a file for writing. With resume the outcomes that it has are returned, and others are added to it.
func openStore(path string, resume bool) (*store, []outcome, error) {
	if path == "" {
		return &store{}, nil, nil
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	var kept []outcome
	if resume {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
		var err error
		kept, err = readOutcomes(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, err
		}
	}
	file, err := os.OpenFile(path, flags, 0o644)
	return &store{file: file}, kept, err
}

// addOutcome writes an outcome.
func (s *store) addOutcome(o *outcome) error {
	if s.file == nil {
		return nil
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.file.Write(append(data, '\n'))
	return err
}

func (s *store) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// readOutcomes reads the outcomes that a store has written.
func readOutcomes(path string) ([]outcome, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()

	var list []outcome
	lines := json.NewDecoder(bufio.NewReader(file))
	for {
		var o outcome
		err := lines.Decode(&o)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s, cell %d: %w", path, len(list)+1, err)
		}
		list = append(list, o)
	}
}
