package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// MooncakeBlock is the number of tokens of a block in the published Mooncake traces.
const MooncakeBlock = 512

// MooncakeRow is a row of a Mooncake trace.
type MooncakeRow struct {
	Timestamp float64  `json:"timestamp"`     // milliseconds
	Input     int      `json:"input_length"`  // tokens
	Output    int      `json:"output_length"` // tokens
	HashIDs   []uint64 `json:"hash_ids"`      // one a block; equal ids are equal blocks
	Session   string   `json:"session_id,omitempty"`
}

// Mooncake reads a trace in the JSON lines of Mooncake. blockSize is the number of tokens of a block,
// [MooncakeBlock] in the published traces.
func Mooncake(r io.Reader, blockSize int) Source {
	next := MooncakeRows(r)
	return func() (Arrival, bool, error) {
		row, ok, err := next()
		if !ok || err != nil {
			return Arrival{}, false, err
		}
		return row.arrival(blockSize), true, nil
	}
}

// MooncakeRows reads a Mooncake trace row by row. ok is false after the last one.
func MooncakeRows(r io.Reader) func() (row MooncakeRow, ok bool, err error) {
	l := newLines(r)
	return func() (MooncakeRow, bool, error) {
		line, err := l.next()
		if line == nil || err != nil {
			return MooncakeRow{}, false, err
		}

		var row MooncakeRow
		if err := json.Unmarshal(line, &row); err != nil {
			return row, false, l.fail(err)
		}
		if err := row.validate(); err != nil {
			return row, false, l.fail(err)
		}
		return row, true, nil
	}
}

func (row *MooncakeRow) validate() error {
	if row.Input < 1 || row.Input > maxRowTokens || row.Output < 0 || row.Output > maxRowTokens {
		return fmt.Errorf("input_length %d and output_length %d: they must be from 1 and 0 to %d", row.Input, row.Output, maxRowTokens)
	}
	_, err := timestamp(row.Timestamp, time.Millisecond)
	return err
}

// arrival returns the row, which is valid, as an arrival.
func (row *MooncakeRow) arrival(blockSize int) Arrival {
	at, _ := timestamp(row.Timestamp, time.Millisecond)
	return Arrival{
		At:     at,
		Prompt: Blocks{IDs: row.HashIDs, Size: blockSize, Length: row.Input},
		Output: max(1, row.Output), Session: row.Session,
	}
}
