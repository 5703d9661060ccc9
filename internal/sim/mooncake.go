package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxLine bounds a line of a trace; an agent's whole prompt is one.
const maxLine = 16 << 20

// lines reads a trace line by line and names the line at fault.
type lines struct {
	scan *bufio.Scanner
	at   int
}

func newLines(r io.Reader) *lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &lines{scan: s}
}

// next is the next line that is not empty, or nil at the end.
func (l *lines) next() ([]byte, error) {
	for l.scan.Scan() {
		l.at++
		if b := l.scan.Bytes(); len(b) > 0 {
			return b, nil
		}
	}
	if err := l.scan.Err(); err != nil {
		l.at++
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("%w: a line may have %d MB", errTraceTooLarge, maxLine>>20)
		}
		return nil, l.fail(err)
	}
	return nil, nil
}

func (l *lines) fail(err error) error { return fmt.Errorf("read trace: line %d: %w", l.at, err) }

// maxTraceTokens bounds what a row of a trace may ask for.
const maxTraceTokens = 16 << 20

// mooncakeRow is a row of a Mooncake trace.
type mooncakeRow struct {
	Timestamp float64  `json:"timestamp"` // milliseconds
	Input     int      `json:"input_length"`
	Output    int      `json:"output_length"`
	HashIDs   []uint64 `json:"hash_ids"`
	Session   string   `json:"session_id"`
}

// Mooncake reads a trace in Mooncake's JSON lines: timestamp in milliseconds, input_length and
// output_length in tokens, hash_ids of blocks of blockSize tokens (512 in the published traces;
// equal ids are equal blocks).
func Mooncake(r io.Reader, blockSize int) func() (Arrival, bool, error) {
	l := newLines(r)
	return func() (a Arrival, ok bool, err error) {
		line, err := l.next()
		if line == nil || err != nil {
			return a, false, err
		}
		var row mooncakeRow
		if err := json.Unmarshal(line, &row); err != nil {
			return a, false, l.fail(err)
		}
		if row.Input < 1 || row.Input > maxTraceTokens || row.Output < 0 || row.Output > maxTraceTokens {
			return a, false, l.fail(fmt.Errorf("input_length %d and output_length %d: they must be from 1 and 0 to %d", row.Input, row.Output, maxTraceTokens))
		}
		at, err := since(row.Timestamp, time.Millisecond)
		if err != nil {
			return a, false, l.fail(err)
		}
		return Arrival{
			At:     at,
			Prompt: Blocks{IDs: row.HashIDs, Size: blockSize, Length: row.Input},
			Output: max(1, row.Output), Session: row.Session,
		}, true, nil
	}
}
