package disk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

var kills = flag.Int("blocks.kills", 20, "processes that TestKilled ends while they store blocks")

// childFolder is the environment variable by which a test starts its own binary as a process that stores blocks.
const childFolder = "STATOR_TEST_DISK_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childFolder); dir != "" {
		fmt.Fprintln(os.Stderr, storeForever(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const (
	killedSlots = 48
	killedBlock = 1<<20 - 100
)

func killedConfig(dir string) Config {
	return Config{Dir: dir, Bytes: killedSlots * (headerBytes + 1<<20), BlockBytes: killedBlock, Space: testSpace, Workers: 8}
}

// storeForever stores blocks as fast as the disk takes them, and removes some.
func storeForever(dir string) error {
	d, err := Open(killedConfig(dir))
	if err != nil {
		return err
	}
	fmt.Println("open")

	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for {
				k := key(rand.IntN(1 << 20))
				if err := d.Store(context.Background(), k, content(k, 0, killedBlock), 0); err != nil {
					panic(err)
				}
				if rand.IntN(10) == 0 {
					d.Remove(k)
				}
			}
		})
	}
	wait.Wait()
	return nil
}

// TestKilled ends processes by SIGKILL while they store blocks, all in one folder. After each, all blocks that the folder has must
// have the bytes that belong to their keys.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	var found, verified, torn, stale int
	var opening time.Duration
	for range *kills {
		kill(t, dir)

		began := time.Now()
		d, err := Open(killedConfig(dir))
		if err != nil {
			t.Fatal(err)
		}
		opening = max(opening, time.Since(began))
		found += d.Stats().Restored
		dst := make([]byte, killedBlock)
		for k := range d.Keys() {
			err := d.Load(t.Context(), k, dst)
			if err == nil && !bytes.Equal(dst, content(k, 0, killedBlock)) {
				t.Errorf("block %v has wrong bytes", k)
			}
			if err != nil && !errors.Is(err, ErrTorn) && !errors.Is(err, ErrStale) {
				t.Errorf("block %v: %v", k, err)
			}
		}
		s := d.Stats()
		verified += int(s.Loads)
		torn += int(s.Torn)
		stale += int(s.Stale)
		d.Close()
	}

	t.Logf("%d kills: %d blocks found, %d verified, %d torn and %d overwritten ones dropped, 0 wrong; longest Open %v",
		*kills, found, verified, torn, stale, opening.Round(time.Millisecond))
	if verified == 0 || *kills >= 100 && torn+stale == 0 || found != verified+torn+stale {
		t.Error("the counts do not add up")
	}
}

// kill starts a process that stores blocks, and ends it at a random moment. While it runs it has the folder for itself.
func kill(t *testing.T, dir string) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childFolder+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = child.Wait()
	}()

	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "open\n" {
		t.Fatalf("the process printed %q: %v", line, err)
	}
	_, err = Open(killedConfig(dir))
	if want := fmt.Sprintf("process %d:", child.Process.Pid); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("the folder of another process: %v, want %s", err, want)
	}
	time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
}
