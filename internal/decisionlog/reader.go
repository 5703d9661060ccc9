package decisionlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxLine bounds a line.
const maxLine = 16 << 20

// Reader reads a decision log line by line. Create it with [NewReader].
type Reader struct {
	lines   *bufio.Scanner
	at      int // number of the current line
	skipped int
	started bool // a version line was read
}

// NewReader returns a reader of a log.
func NewReader(r io.Reader) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &Reader{lines: lines}
}

// Next returns the next decision or end, or io.EOF. Errors name the line.
//
// A line that is not JSON is skipped and counted: a full disk or a killed router cuts lines, an older
// router has written the next line right behind, and the log that is being written may end in one.
func (r *Reader) Next() (Line, error) {
	for r.lines.Scan() {
		r.at++
		text := bytes.TrimSpace(r.lines.Bytes())
		if len(text) == 0 {
			continue
		}

		var l Line
		err := json.Unmarshal(text, &l)
		var cut *json.SyntaxError
		if errors.As(err, &cut) {
			r.skipped++
			continue
		}
		if err == nil {
			err = r.check(&l)
		}
		if err != nil {
			return Line{}, r.Errorf("%w", err)
		}
		if l.Version == 0 {
			return l, nil
		}
	}
	if err := r.lines.Err(); err != nil {
		r.at++
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("it is too large: a line may have %d MB", maxLine>>20)
		}
		return Line{}, r.Errorf("%w", err)
	}
	if !r.started && r.skipped > 0 {
		return Line{}, r.Errorf("%w", errNoVersion)
	}
	return Line{}, io.EOF
}

var errNoVersion = fmt.Errorf(`the log has no version: its first line must be {"version":%d,"format":%q}`, Version, Format)

// check validates a line, and that a version line came before it.
func (r *Reader) check(l *Line) error {
	if err := l.validate(); err != nil {
		return err
	}
	if l.Version != 0 {
		r.started = true
	}
	if !r.started {
		return errNoVersion
	}
	return nil
}

// Line returns the number of the last line that was read, from 1.
func (r *Reader) Line() int { return r.at }

// Skipped returns how many lines were skipped because they are not JSON.
func (r *Reader) Skipped() int { return r.skipped }

// Errorf returns an error about the last line that was read.
func (r *Reader) Errorf(format string, args ...any) error {
	return fmt.Errorf("read decision log: line %d: %w", r.at, fmt.Errorf(format, args...))
}
