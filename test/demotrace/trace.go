package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/conversations"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

// load reads the first n rows of the trace at path, or of Mooncake's where path is empty. Where that is not at
// hand it generates as many, and name is empty.
func load(path string, n int) (rows []trace.MooncakeRow, name string, err error) {
	if path == "" {
		found, ok := tracefiles.Find("", tracefiles.Mooncake.Path)
		if !ok {
			return conversations.Rows(n, generatedSeed), "", nil
		}
		path = found
	}

	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("open trace: %w", err)
	}
	defer func() { _ = f.Close() }()

	rows, err = readRows(trace.MooncakeRows(f), n)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	return rows, path, nil
}

// generatedSeed is the seed of the generated trace.
const generatedSeed = 2

func readRows(next func() (trace.MooncakeRow, bool, error), n int) (rows []trace.MooncakeRow, err error) {
	for len(rows) < n {
		row, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		rows = append(rows, row)
	}

	if len(rows) == 0 {
		return nil, errors.New("the trace has no rows")
	}
	return rows, nil
}

// infiniteReuse returns the share of prompt blocks that one infinite cache would hold.
func infiniteReuse(rows []trace.MooncakeRow) float64 {
	seen := map[uint64]bool{}
	hits := 0
	for _, r := range rows {
		inPrefix := true
		for _, b := range r.HashIDs {
			inPrefix = inPrefix && seen[b]
			if inPrefix {
				hits++
			}
			seen[b] = true
		}
	}

	return float64(hits) / float64(promptBlocks(rows))
}

func promptBlocks(rows []trace.MooncakeRow) (n int) {
	for _, r := range rows {
		n += len(r.HashIDs)
	}
	return n
}

// seconds returns the time from the first row to the last.
func seconds(rows []trace.MooncakeRow) float64 {
	return (rows[len(rows)-1].Timestamp - rows[0].Timestamp) / 1000
}
