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
// A line that ends in the middle is skipped: a full disk or a killed router cuts lines, and the log that
// is being written may end in one.
func (r *Reader) Next() (Line, error) {
	for r.lines.Scan() {
		r.at++
		text := bytes.TrimSpace(r.lines.Bytes())
		if len(text) == 0 {
			continue
		}

		var l Line
		err := json.Unmarshal(text, &l)
		if isCut(err, len(text)) {
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
	return Line{}, io.EOF
}

// check validates a line, and that a version line came before it.
func (r *Reader) check(l *Line) error {
	if err := l.validate(); err != nil {
		return err
	}
	if l.Version != 0 {
		r.started = true
	}
	if !r.started {
		return fmt.Errorf(`the log has no version: its first line must be {"version":%d,"format":%q}`, Version, Format)
	}
	return nil
}

// isCut reports whether an error means that the text ends too early.
func isCut(err error, length int) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax) && syntax.Offset >= int64(length) && syntax.Error() == "unexpected end of JSON input"
}

// Line returns the number of the last line that was read, from 1.
func (r *Reader) Line() int { return r.at }

// Skipped returns how many cut lines were skipped.
func (r *Reader) Skipped() int { return r.skipped }

// Errorf returns an error about the last line that was read.
func (r *Reader) Errorf(format string, args ...any) error {
	return fmt.Errorf("read decision log: line %d: %w", r.at, fmt.Errorf(format, args...))
}
