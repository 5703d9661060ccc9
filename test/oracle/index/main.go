// Command index runs operations on the cache index for test/oracle/index.py.
//
// It reads a file of JSON lines, decodes all of them, and then applies them in order:
//
//	{"op": "store", "rank": 0, "parent": 1 or null, "hashes": [...], "blocks": [...]}
//	{"op": "remove", "rank": 0, "hashes": [...]}
//	{"op": "query", "blocks": [...]}
//
// For a query it prints a line {"rank": blocks, ...} with the ranks that hold blocks of it. The last line has
// the number of block operations and their CPU time, without queries.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/test/process"
)

type operation struct {
	Op     string            `json:"op"`
	Rank   fleet.RankID      `json:"rank"`
	Parent *uint64           `json:"parent"`
	Hashes []uint64          `json:"hashes"`
	Blocks []blockhash.Block `json:"blocks"`
}

func main() {
	if err := answerOperations(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func answerOperations(file string, out io.Writer) error {
	operations, err := readOperations(file)
	if err != nil {
		return err
	}

	answers := json.NewEncoder(out)
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 30})
	var overlap kvindex.Overlap
	for i := range operations {
		o := &operations[i]
		if o.Op != "query" {
			apply(x, o)
			continue
		}
		x.Lookup(o.Blocks, &overlap)
		held := map[fleet.RankID]int{}
		for _, h := range overlap.Ranks() {
			held[h.Rank] = h.Blocks[fleet.Device]
		}
		if err := answers.Encode(held); err != nil {
			return err
		}
	}

	return answers.Encode(measure(operations))
}

func apply(x *kvindex.Index, o *operation) {
	if o.Op == "remove" {
		x.Remove(o.Rank, fleet.Device, o.Hashes)
		return
	}
	parent := uint64(0)
	if o.Parent != nil {
		parent = *o.Parent
	}

	x.Store(o.Rank, fleet.Device, kvindex.Chain{Parent: parent, HasParent: o.Parent != nil, Hashes: o.Hashes, Blocks: o.Blocks})
}

type measured struct {
	Blocks  int     `json:"blocks"`
	Seconds float64 `json:"cpu_seconds"`
	Bytes   int64   `json:"bytes"`
	Pairs   int64   `json:"pairs"`
}

// measure applies everything again to new indexes until that has taken a second.
func measure(operations []operation) (m measured) {
	for m.Seconds < 1 {
		x := kvindex.New(kvindex.Config{MaxBytes: 1 << 30})
		start := process.OwnCPU()
		for i := range operations {
			if o := &operations[i]; o.Op != "query" {
				apply(x, o)
				m.Blocks += len(o.Hashes)
			}
		}
		m.Seconds += (process.OwnCPU() - start).Seconds()
		s := x.Stats()
		m.Bytes, m.Pairs = s.Bytes, s.Pairs
		if m.Blocks == 0 {
			return m
		}
	}
	return m
}

func readOperations(file string) (operations []operation, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}

	defer f.Close()
	in := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for {
		var o operation
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return operations, nil
		} else if err != nil {
			return nil, fmt.Errorf("read operations: %w", err)
		}
		operations = append(operations, o)
	}
}
