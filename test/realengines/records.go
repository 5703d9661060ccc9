package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
)

// record has the lines of the decision log about one request.
type record struct {
	decision *decisionlog.Decision
	end      *decisionlog.End
}

// records reads the decision log once it has the ends of all these decisions, or no more of them arrive.
func (g *gateway) records(ctx context.Context, ids []string) (map[string]record, error) {
	for try := 0; ; try++ {
		all, err := g.readRecords()
		if err != nil {
			return nil, err
		}
		missing := 0
		for _, id := range ids {
			if all[id].end == nil {
				missing++
			}
		}
		if missing == 0 || try == 50 {
			return all, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// decided returns the decisions of requests that were all answered, by their ids.
func (g *gateway) decided(ctx context.Context, ids []string) (map[string]*decisionlog.Decision, error) {
	records, err := g.records(ctx, ids)
	if err != nil {
		return nil, err
	}
	decisions := map[string]*decisionlog.Decision{}
	for _, id := range ids {
		decisions[id] = records[id].decision
		if decisions[id] == nil {
			return nil, fmt.Errorf("decision %s is not in the log", id)
		}
	}
	return decisions, nil
}

func (g *gateway) readRecords() (map[string]record, error) {
	all := map[string]record{}
	err := eachLine(g.decisions, func(line decisionlog.Line) {
		switch {
		case line.Decision != nil:
			r := all[line.Decision.ID]
			r.decision = line.Decision
			all[line.Decision.ID] = r
		case line.End != nil:
			r := all[line.End.ID]
			r.end = line.End
			all[line.End.ID] = r
		}
	})
	return all, err
}

// eachLine reads a decision log. One that is not there yet has no lines.
func eachLine(path string, take func(decisionlog.Line)) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()

	lines := decisionlog.NewReader(file)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		take(line)
	}
}
