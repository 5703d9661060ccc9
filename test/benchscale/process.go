package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// child is a process of this program in one role.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startChild starts a role with the options of this process.
func startChild(ctx context.Context, o *options, role, url string, errOut io.Writer) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self, "--role", role, "--url", url,
		"--workers", strconv.Itoa(o.workers), "--live", strconv.Itoa(o.live), "--blocks", strconv.Itoa(o.blocks),
		"--rate", strconv.Itoa(o.rate), "--intakes", strconv.Itoa(o.intakes))}
	c.cmd.Stderr = errOut
	c.in, err = c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	return c, c.cmd.Start()
}

// line returns the next line that the child prints.
func (c *child) line() (string, error) {
	text, err := c.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read from %s: %w", c.cmd.Args[2], err)
	}
	return strings.TrimSpace(text), nil
}

// order sends the child an empty line.
func (c *child) order() error {
	_, err := io.WriteString(c.in, "\n")
	return err
}

// read fills v from the child's next line.
func (c *child) read(v any) error {
	text, err := c.line()
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), v)
}

// figures asks a router for its figures.
func (c *child) figures() (*figures, error) {
	if err := c.order(); err != nil {
		return nil, err
	}
	f := &figures{}
	return f, c.read(f)
}

// stop ends the child and waits for it.
func (c *child) stop() {
	_ = c.in.Close()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Wait()
}
