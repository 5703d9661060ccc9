package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// checkout is a work tree of the base revision.
type checkout struct {
	dir, revision string
}

// checkOut makes a work tree of a revision below dir. If the repository's parent folder holds shared
// files that tests use, they are found at the same relative place.
func checkOut(ctx context.Context, dir, revision string) (*checkout, error) {
	out, err := command(ctx, ".", "git", "rev-parse", "--short", revision)
	if err != nil {
		return nil, err
	}

	c := &checkout{dir: filepath.Join(dir, "base"), revision: strings.TrimSpace(out)}
	if _, err := command(ctx, ".", "git", "worktree", "add", "--quiet", "--detach", c.dir, revision); err != nil {
		return nil, err
	}
	if shared, err := filepath.Abs("../shared"); err == nil {
		_ = os.Symlink(shared, filepath.Join(dir, "shared"))
	}
	return c, nil
}

func (c *checkout) remove() {
	_ = exec.Command("git", "worktree", "remove", "--force", c.dir).Run()
}

// binaries are the test binaries of one package at both revisions, and the folders that they run in.
type binaries struct {
	now, base       string
	nowDir, baseDir string
}

func build(ctx context.Context, dir, baseTree string, p pair) (b binaries, err error) {
	name := strings.ReplaceAll(p.now, "/", "-")
	b = binaries{
		now: filepath.Join(dir, name+"-now.test"), base: filepath.Join(dir, name+"-base.test"),
		baseDir: filepath.Join(baseTree, p.base),
	}
	b.nowDir, err = filepath.Abs(p.now)
	if err != nil {
		return b, err
	}

	if _, err := command(ctx, ".", "go", "test", "-c", "-o", b.now, "./"+p.now); err != nil {
		return b, err
	}

	_, err = command(ctx, baseTree, "go", "test", "-c", "-o", b.base, "./"+p.base)
	return b, err
}

// common returns the names of the benchmarks, with their sub-benchmarks, that both revisions have. Those whose
// name matches skip are not even run once.
func (b binaries) common(ctx context.Context, skip *regexp.Regexp) ([]string, error) {
	now, err := benchmarks(ctx, b.nowDir, b.now, skip)
	if err != nil {
		return nil, err
	}

	base, err := benchmarks(ctx, b.baseDir, b.base, skip)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(now, func(name string) bool { return !slices.Contains(base, name) }), nil
}

// benchmarks runs every benchmark once, because sub-benchmarks have no other list.
func benchmarks(ctx context.Context, dir, binary string, skip *regexp.Regexp) (names []string, err error) {
	list, err := command(ctx, dir, binary, "-test.list", "^Benchmark")
	if err != nil {
		return nil, err
	}
	var wanted []string
	for _, name := range strings.Fields(list) {
		if !skip.MatchString(name) {
			wanted = append(wanted, name)
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}

	pattern := "^(" + strings.Join(wanted, "|") + ")$"
	out, err := command(ctx, dir, binary, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", "1x", "-test.cpu", "1")
	if err != nil {
		return nil, err
	}

	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[0], "Benchmark") {
			names = append(names, fields[0])
		}
	}
	return names, nil
}

// command runs a program and returns its standard output.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}
