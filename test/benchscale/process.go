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
	"time"
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

// cpu returns the CPU time that the running child has spent.
func (c *child) cpu() (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read CPU time: %q has %d fields", data, len(fields))
	}

	const hertz = 100 // of the counters in /proc
	ticks := 0
	for _, text := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / hertz), nil
}

// cpuTime returns the CPU time that this process has spent.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentBytes returns the memory of this process.
func residentBytes() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
