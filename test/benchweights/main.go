// Command benchweights measures how soon several nodes have the files of a model, over links of a bounded rate on loopback.
//
//	one    one node fetches them: the time of one transfer
//	chain  all nodes fetch them together, by stator weights
//	plain  all nodes download them from the node that has them, each by itself
//
// Each node is a process of stator, behind a proxy that bounds the bytes that it sends in a second. Only sending is bounded: in a chain
// each node sends to one other, so none receives more than the rate. In each fault round of chain, a node in the middle is killed when it
// has half of the files and is started again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("benchweights", run) }

type options struct {
	stator, dir, only string
	mib, mbit         int
	receivers, rounds int
	faults            int
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	f := flag.NewFlagSet("benchweights", flag.ContinueOnError)
	f.SetOutput(progress)
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.dir, "dir", "", "`folder` for all files (default: a temporary one)")
	f.StringVar(&o.only, "only", "one,chain,plain", "`ways` to run, with commas between them")
	f.IntVar(&o.mib, "mib", 256, "size of the files in `MiB`")
	f.IntVar(&o.mbit, "mbit", 200, "rate of each node's link in `Mbit/s`")
	f.IntVar(&o.receivers, "receivers", 8, "nodes that fetch")
	f.IntVar(&o.rounds, "rounds", 1, "rounds of each way")
	f.IntVar(&o.faults, "faults", 1, "rounds of chain in which a node is killed and started again")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.mib < 1 || o.mbit < 1 || o.receivers < 2 || o.rounds < 1 || o.faults < 0 {
		return errors.New("--mib, --mbit and --rounds must be positive, and --receivers at least 2")
	}
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "benchweights-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		o.dir = dir
	}
	source := filepath.Join(o.dir, "source")
	if err := o.makeFiles(source); err != nil {
		return err
	}

	fmt.Fprintf(out, "%d MiB in shards of 256 MiB, links of %d Mbit/s, so one transfer takes %.1f s at least; load average %s\n\n",
		o.mib, o.mbit, float64(o.mib)*8*1.048576/float64(o.mbit), process.LoadAverage())
	fmt.Fprintln(out, "| Way | First node, s | Last node, s | ÷ one transfer |\n|---|---|---|---|")
	unit := 0.0
	for round := range o.rounds + o.faults {
		for _, way := range strings.Split(o.only, ",") {
			isFault := round >= o.rounds
			if isFault && way != "chain" {
				continue
			}
			first, last, err := o.measure(ctx, source, way, isFault)
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			name := map[string]string{"one": "one node", "plain": "plain download"}[way]
			if way == "chain" {
				name = "chain"
			}
			if isFault {
				name += ", a node killed and started again"
			}
			if way == "one" {
				unit = last.Seconds()
			}
			fmt.Fprintf(out, "| %s | %.1f | %.1f | %.2f |\n", name, first.Seconds(), last.Seconds(), last.Seconds()/max(unit, 1e-9))
		}
	}
	fmt.Fprintf(out, "\nAll files were compared with the source. Load average %s.\n", process.LoadAverage())
	return nil
}

// makeFiles writes the files, in shards.
func (o *options) makeFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{7})
	piece := make([]byte, 1<<20)
	const shard = 256
	for at := 0; at < o.mib; at += shard {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("model-%05d.safetensors", at/shard)))
		if err != nil {
			return err
		}
		for range min(shard, o.mib-at) {
			_, _ = random.Read(piece)
			if _, err := file.Write(piece); err != nil {
				return err
			}
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}

// node is a process behind a link.
type node struct {
	listen, public string // behind the link, and before it
	dir            string
	close          func()
}

// measure runs one way, and returns the times of the first and the last node.
func (o *options) measure(ctx context.Context, source, way string, isFault bool) (first, last time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes := make([]*node, 1+o.receivers)
	if way == "one" {
		nodes = nodes[:2]
	}
	for i := range nodes {
		n := &node{dir: filepath.Join(o.dir, fmt.Sprintf("node-%d", i))}
		for _, address := range []*string{&n.listen, &n.public} {
			*address, err = loopback.Address()
			if err != nil {
				return 0, 0, err
			}
		}
		n.close, err = link(n.public, n.listen, int64(o.mbit)*1e6/8)
		if err != nil {
			return 0, 0, err
		}
		defer n.close()
		defer func() { _ = os.RemoveAll(n.dir); _ = os.RemoveAll(n.dir + ".partial") }()
		nodes[i] = n
	}

	receivers := 1
	if way == "plain" {
		receivers = o.receivers
	}
	root, err := o.start("root",
		"serve", "--model", "m", "--dir", source, "--listen-address", nodes[0].listen, "--receivers", strconv.Itoa(receivers))
	if err != nil {
		return 0, 0, err
	}
	defer root.Stop()
	if err := await(ctx, root, "serving the files"); err != nil {
		return 0, 0, err
	}

	began := time.Now()
	times := make([]time.Duration, len(nodes))
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i := 1; i < len(nodes); i++ {
		all.Go(func() {
			times[i], errs[i] = o.fetch(ctx, nodes, i, way, isFault && i == len(nodes)/2, began)
		})
	}
	all.Wait()
	for i := 1; i < len(nodes) && err == nil; i++ {
		err = errors.Join(errs[i], same(source, nodes[i].dir))
	}
	first, last = times[1], times[1]
	for _, t := range times[1:] {
		first, last = min(first, t), max(last, t)
	}
	return first, last, err
}

// fetch runs the node that fetches, until it has all files.
func (o *options) fetch(ctx context.Context, nodes []*node, i int, way string, isKilled bool, began time.Time) (time.Duration, error) {
	args := []string{"fetch", "--model", "m", "--dir", nodes[i].dir, "--listen-address", nodes[i].listen, "--peers", nodes[0].public}
	if way != "plain" {
		for _, other := range nodes[1:] {
			args = append(args, "--peers", other.public)
		}
	}

	name := filepath.Base(nodes[i].dir)
	p, err := o.start(name, args...)
	if err != nil {
		return 0, err
	}
	if isKilled {
		time.Sleep(time.Duration(float64(o.mib) * 8e6 * 1.048576 / float64(o.mbit) / 1e6 / 2 * float64(time.Second)))
		_ = p.Signal(syscall.SIGKILL)
		p.Stop() // waits for its end
		p, err = o.start(name, args...)
		if err != nil {
			return 0, err
		}
	}
	defer p.Stop() // after its time for the nodes that fetch from it: it ends by itself
	if err := await(ctx, p, "all files of the model are there"); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, process.Await(ctx, patience, func(context.Context) error {
		if !p.Ended() {
			return errors.New("it goes on")
		}
		return nil
	})
}

// start starts stator weights, whose log is beside the files.
func (o *options) start(name string, args ...string) (*process.Child, error) {
	log := filepath.Join(o.dir, name+".log")
	if err := os.Remove(log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return process.StartChild(name, log, nil, o.stator, append([]string{"weights"}, args...)...)
}

// await waits until the log of a process has a text. A process that has ended may have written it before.
func await(ctx context.Context, p *process.Child, text string) error {
	hasText := func(context.Context) error {
		log, err := os.ReadFile(p.Log)
		if err == nil && !strings.Contains(string(log), text) {
			err = fmt.Errorf("its log does not have %q", text)
		}
		return err
	}
	err := p.Await(ctx, patience, hasText)
	if err != nil && p.Ended() && hasText(ctx) == nil {
		return nil
	}
	return err
}

// patience bounds a transfer.
const patience = time.Hour

// same compares the files of two folders.
func same(want, got string) error {
	entries, err := os.ReadDir(want)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		out, err := exec.Command("cmp", filepath.Join(want, entry.Name()), filepath.Join(got, entry.Name())).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// link listens on an address and connects to another one. Bytes from there are bounded to a rate, in bytes a second, over all connections.
func link(public, private string, rate int64) (stop func(), err error) {
	ln, err := net.Listen("tcp", public)
	if err != nil {
		return nil, err
	}

	b := &bucket{rate: float64(rate), last: time.Now()}
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = in.Close() }()
				out, err := net.Dial("tcp", private)
				if err != nil {
					return
				}
				defer func() { _ = out.Close() }()
				go func() {
					_, _ = io.Copy(out, in)
					_ = out.Close()
				}()
				buffer := make([]byte, 128<<10)
				for {
					n, err := out.Read(buffer)
					if n > 0 {
						b.take(n)
						if _, err := in.Write(buffer[:n]); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	return func() { _ = ln.Close() }, nil
}

// bucket bounds bytes a second. A connection that takes more than there are waits.
type bucket struct {
	rate float64

	mu   sync.Mutex
	last time.Time // guarded by mu; until when the bytes so far take
}

func (b *bucket) take(n int) {
	b.mu.Lock()
	now := time.Now()
	if b.last.Before(now) {
		b.last = now
	}
	b.last = b.last.Add(time.Duration(float64(n) / b.rate * float64(time.Second)))
	wait := b.last.Sub(now)
	b.mu.Unlock()
	time.Sleep(wait)
}
