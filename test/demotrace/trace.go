package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
)

// row is one request of a trace, as Mooncake publishes them.
type row struct {
	Timestamp float64  `json:"timestamp"`     // ms since the start
	Input     int      `json:"input_length"`  // tokens
	Output    int      `json:"output_length"` // tokens
	Blocks    []uint64 `json:"hash_ids"`      // one per 512-token block; equal ids, equal prefix
}

// load reads the first n rows of the file, or generates as many where there is none.
func load(path string, n int) ([]row, string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return generate(n), "a generated trace (there is no " + path + ")", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("open trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	var rows []row
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for len(rows) < n && lines.Scan() {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, "", fmt.Errorf("read trace: line %d: %w", len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	if err := lines.Err(); err != nil {
		return nil, "", fmt.Errorf("read trace: %w", err)
	}
	if len(rows) == 0 {
		return nil, "", fmt.Errorf("read trace: %s has no rows", path)
	}
	return rows, path, nil
}

// generate makes conversations that start at random, grow by a few blocks a turn and end:
// with the shares chosen here an infinite cache reuses about a third of the blocks, as it does
// of the Mooncake conversations.
func generate(n int) []row {
	rng := rand.New(rand.NewPCG(1, 2))
	next := uint64(1)
	fresh := func(k int) (ids []uint64) {
		for range k {
			ids = append(ids, next)
			next++
		}
		return ids
	}
	var open [][]uint64
	var rows []row
	for i := range n {
		var blocks []uint64
		if len(open) > 0 && rng.Float64() < 0.42 {
			k := rng.IntN(len(open))
			blocks = append(append(blocks, open[k]...), fresh(1+rng.IntN(10))...)
			if open[k] = blocks; rng.Float64() < 0.2 {
				open = append(open[:k], open[k+1:]...)
			}
		} else {
			blocks = append([]uint64{0}, fresh(2+int(rng.ExpFloat64()*18))...) // all share block 0
			open = append(open, blocks)
			if len(open) > 300 {
				open = open[1:]
			}
		}
		rows = append(rows, row{Timestamp: float64(i) * 294, Input: 512 * len(blocks), Output: 20 + int(rng.ExpFloat64()*320), Blocks: blocks})
	}
	return rows
}

// bound is the share of prompt blocks that one infinite cache would hold.
func bound(rows []row) float64 {
	seen, hits := map[uint64]bool{}, 0
	for _, r := range rows {
		reused := true
		for _, b := range r.Blocks {
			if reused = reused && seen[b]; reused {
				hits++
			}
			seen[b] = true
		}
	}
	return float64(hits) / float64(promptBlocks(rows))
}

func promptBlocks(rows []row) (n int) {
	for _, r := range rows {
		n += len(r.Blocks)
	}
	return n
}

func span(rows []row) float64 { return (rows[len(rows)-1].Timestamp - rows[0].Timestamp) / 1000 }
