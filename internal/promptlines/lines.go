package promptlines

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// bufferBytes is the size of the buffers of input and output.
const bufferBytes = 64 << 10

// maxLine bounds an input line.
const maxLine = 64 << 20

// Each answers every line of in with one line of out, in order, until in or ctx ends. A line for which answer
// returns an error gets that error as its answer, unless ctx has ended. Answers are flushed when no more input is
// there, so that a program can send a line and wait for the answer.
//
// Each does not wait for a Read of in when ctx ends. That Read ends with the process, or when in does.
func Each(ctx context.Context, in io.Reader, out io.Writer, answer func(dst, line []byte) ([]byte, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewReaderSize(newStoppable(ctx, in), bufferBytes)
	w := bufio.NewWriterSize(out, bufferBytes)
	var line, reply []byte
	for ctx.Err() == nil {
		var err error
		var tooLong bool
		line, tooLong, err = readLine(lines, line[:0])
		if ctx.Err() != nil || errors.Is(err, io.EOF) && len(line) == 0 && !tooLong {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read standard input: %w", err)
		}

		reply = replyTo(reply[:0], line, tooLong, answer)
		if ctx.Err() != nil {
			break // the reply may be the error of an answer that was ended early
		}
		if _, err := w.Write(append(reply, '\n')); err != nil {
			return fmt.Errorf("write standard output: %w", err)
		}
		if lines.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return fmt.Errorf("write standard output: %w", err)
			}
		}
	}
	return w.Flush()
}

func replyTo(dst, line []byte, tooLong bool, answer func(dst, line []byte) ([]byte, error)) []byte {
	err := error(openai.Invalid("", "line_too_long", "The line is longer than the %d bytes a line may have. Send a shorter one.", maxLine))
	if !tooLong {
		reply, answerErr := answer(dst, line)
		if answerErr == nil {
			return reply
		}
		err = answerErr
	}

	var e *openai.Error
	if !errors.As(err, &e) {
		e = &openai.Error{Status: 500, Type: openai.ServerError, Message: err.Error()}
	}
	return append(dst[:0], e.JSON()...)
}

// readLine appends the next line without its end. The rest of a line that is too long is skipped.
func readLine(r *bufio.Reader, dst []byte) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(dst)+len(part) > maxLine {
			tooLong, dst = true, dst[:0]
		}
		if !tooLong {
			dst = append(dst, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(dst, "\r\n"), tooLong, err
		}
	}
}

// stoppable reads until its context ends. A goroutine calls Read of the source, because a Read of standard input
// cannot be interrupted.
type stoppable struct {
	done  <-chan struct{}
	parts chan part
	rest  part // the part that the caller has not read yet
}

// part is the result of one Read of the source.
type part struct {
	data []byte
	err  error
}

func newStoppable(ctx context.Context, in io.Reader) *stoppable {
	s := &stoppable{done: ctx.Done(), parts: make(chan part)}
	go func() {
		for err := error(nil); err == nil; {
			data := make([]byte, bufferBytes)
			var n int
			n, err = in.Read(data)
			select {
			case s.parts <- part{data[:n], err}:
			case <-s.done:
				return
			}
		}
	}()
	return s
}

// Read returns io.EOF after the context has ended.
func (s *stoppable) Read(p []byte) (int, error) {
	if len(s.rest.data) == 0 && s.rest.err == nil {
		select {
		case s.rest = <-s.parts:
		case <-s.done:
			s.rest.err = io.EOF
		}
	}

	n := copy(p, s.rest.data)
	s.rest.data = s.rest.data[n:]
	if len(s.rest.data) > 0 {
		return n, nil
	}
	return n, s.rest.err
}
