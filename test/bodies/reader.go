package bodies

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
)

//go:embed reader.py
var program string

// Reader reads bodies as engines in Python do. Create it with [StartReader]. It is for one goroutine at a time.
type Reader struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

// longestAnswer bounds the program's output about one body, in bytes.
const longestAnswer = 1 << 20

// StartReader starts a Python program.
func StartReader(ctx context.Context, python string) (*Reader, error) {
	r := &Reader{cmd: exec.CommandContext(ctx, python, "-c", program)}
	in, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.in, r.lines = in, bufio.NewScanner(out)
	r.lines.Buffer(nil, longestAnswer)
	return r, r.cmd.Start()
}

// Read returns the members of transfers that an engine would read in a body, with Python's text of their values.
func (r *Reader) Read(body []byte) (found map[string]string, err error) {
	if _, err := fmt.Fprintln(r.in, base64.StdEncoding.EncodeToString(body)); err != nil {
		return nil, err
	}
	if !r.lines.Scan() {
		return nil, fmt.Errorf("the reader of bodies has ended: %w", r.lines.Err())
	}
	err = json.Unmarshal(r.lines.Bytes(), &found)
	return found, err
}

// Stop ends the program.
func (r *Reader) Stop() {
	_ = r.in.Close()
	_ = r.cmd.Wait()
}
