package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"
)

var errTooLarge = errors.New("it is too large")

// lines reads a trace line by line.
type lines struct {
	scan *bufio.Scanner
	at   int // number of the current line
}

func newLines(r io.Reader) *lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &lines{scan: s}
}

// next returns the next line that is not empty, or nil after the last one.
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
			err = fmt.Errorf("%w: a line may have %d MB", errTooLarge, maxLine>>20)
		}
		return nil, l.fail(err)
	}
	return nil, nil
}

// fail adds the current line to an error.
func (l *lines) fail(err error) error { return fmt.Errorf("read trace: line %d: %w", l.at, err) }

// timestamp returns the time of a row that counts units from the start of the trace.
func timestamp(count float64, unit time.Duration) (time.Duration, error) {
	if v := count * float64(unit); v >= 0 && v <= float64(maxTraceTime) {
		return time.Duration(v), nil
	}
	return 0, fmt.Errorf("timestamp %v: it must be from 0 to %.0f", count, float64(maxTraceTime)/float64(unit))
}

// quoted cuts a field to the length that an error has room for.
func quoted(s string) string {
	if len(s) > maxFieldQuote {
		return s[:maxFieldQuote] + "…"
	}
	return s
}
