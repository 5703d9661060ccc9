package weights_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/weights"
	"github.com/stator-project/stator/test/testkit"
)

var quiet = slog.New(slog.DiscardHandler)

// writeModel writes files of a model: an empty one, a small one, one of whole chunks, and one in a folder that ends inside a chunk.
func writeModel(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	source := rand.NewChaCha8([32]byte{1})
	for name, size := range map[string]int{
		"config.json": 900, "empty": 0, "model-1.safetensors": 3 * weights.ChunkBytes, "extra/model-2.safetensors": 2*weights.ChunkBytes + 77,
	} {
		data := make([]byte, size)
		_, _ = source.Read(data)
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// node serves its share on an address of its own.
type node struct {
	name, url string
	share     *weights.Share
	stop      func()
	block     atomic.Pointer[func(*http.Request) bool] // reports whether a request's connection is cut
}

func startNode(t *testing.T, name string) *node {
	t.Helper()
	n := &node{name: name, share: weights.NewShare(weights.ShareConfig{Node: name, Receivers: 1, Log: quiet})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.url = "http://" + ln.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cut := n.block.Load(); cut != nil && (*cut)(r) {
			panic(http.ErrAbortHandler)
		}
		n.share.ServeHTTP(w, r)
	}), ErrorLog: slog.NewLogLogger(quiet.Handler(), 0)}
	go func() { _ = server.Serve(ln) }()
	n.stop = func() { _ = server.Close() }
	t.Cleanup(n.stop)
	return n
}

// holder starts a node that has all files of a folder.
func holder(t *testing.T, name, dir string) (*node, *weights.Folder) {
	t.Helper()
	f, err := weights.Open(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, name)
	n.share.Add("m", f)
	return n, f
}

func (n *node) config(dir string, peers ...*node) weights.ReceiverConfig {
	var list []string
	for _, p := range peers {
		list = append(list, p.url)
	}
	return weights.ReceiverConfig{
		Model: "m", Dir: dir, Node: n.name, Client: weights.NewClient(nil), Share: n.share, Streams: 3, Patience: time.Minute, Log: quiet,
		Peers: func(context.Context) ([]string, error) { return list, nil },
	}
}

// assertEqual compares the files of two folders.
func assertEqual(t *testing.T, want, got string) {
	t.Helper()
	err := filepath.WalkDir(want, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, _ := filepath.Rel(want, path)
		a, errA := os.ReadFile(path)
		b, errB := os.ReadFile(filepath.Join(got, name))
		if !bytes.Equal(a, b) {
			t.Errorf("%s: other bytes (%d and %d)", name, len(a), len(b))
		}
		return errors.Join(errA, errB)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestChain: receivers that begin together get all files, and each chunk once. Their lists of peers also have themselves, and a node that
// is gone.
func TestChain(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	dir := writeModel(t)
	root, folder := holder(t, "root", dir)
	gone := startNode(t, "gone")
	gone.stop()

	const receivers = 5
	nodes := []*node{root, gone}
	for i := range receivers {
		nodes = append(nodes, startNode(t, fmt.Sprint("r", i)))
	}
	var all sync.WaitGroup
	for _, n := range nodes[2:] {
		cfg := n.config(filepath.Join(t.TempDir(), "model"), nodes...)
		t.Cleanup(cfg.Client.CloseIdleConnections)
		all.Go(func() {
			f, err := weights.Receive(t.Context(), cfg)
			if err != nil {
				t.Error(err)
				return
			}
			assertEqual(t, dir, f.Dir())
			if f.Manifest().ID() != folder.Manifest().ID() || f.Dir() != cfg.Dir {
				t.Errorf("folder %s has manifest %s", f.Dir(), f.Manifest().ID())
			}
		})
	}
	all.Wait()
	for _, n := range nodes[2:] {
		if err := n.share.Ready(); err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "each chunk was sent to each receiver once", func() bool { // a node counts it after the receiver has it
		sent := int64(0)
		for _, n := range nodes {
			sent += n.share.Sent()
		}
		return sent == receivers*folder.Manifest().Bytes()
	})
}

// TestSenderDies: a receiver whose sender ends in the middle goes on at another node, and fetches only what is missing.
func TestSenderDies(t *testing.T) {
	dir := writeModel(t)
	first, folder := holder(t, "first", dir)
	second, _ := holder(t, "second", dir)
	refuse := func(*http.Request) bool { return true }
	second.block.Store(&refuse)
	var asked atomic.Int64
	dies := func(r *http.Request) bool {
		if strings.Count(r.URL.Path, "/") < 3 || asked.Add(1) < 4 {
			return false
		}
		second.block.Store(nil)
		return true
	}
	first.block.Store(&dies)

	n := startNode(t, "n")
	f, err := weights.Receive(t.Context(), n.config(filepath.Join(t.TempDir(), "model"), first, second))
	if err != nil {
		t.Fatal(err)
	}
	assertEqual(t, dir, f.Dir())
	if sent := second.share.Sent(); asked.Load() < 4 || sent >= folder.Manifest().Bytes() {
		t.Errorf("the second node has sent %d of %d bytes, after %d requests to the first", sent, folder.Manifest().Bytes(), asked.Load())
	}
}

// TestReceiverResumes: a receiver that ended in the middle fetches the rest when it is started again, and a chunk that is damaged on its
// disk as well. A third start asks for nothing.
func TestReceiverResumes(t *testing.T) {
	dir := writeModel(t)
	root, folder := holder(t, "root", dir)
	n := startNode(t, "n")
	cfg := n.config(filepath.Join(t.TempDir(), "model"), root)
	cfg.Streams = 1 // no further chunk is under way when the receiver ends
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Progress = func(done, total int64) {
		if done > total/2 {
			cancel()
		}
	}
	if _, err := weights.Receive(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if _, err := os.Stat(cfg.Dir); err == nil {
		t.Error("the folder has its name before it is complete")
	}

	damaged := filepath.Join(cfg.Dir+".partial", "extra/model-2.safetensors") // its chunks come first
	file, err := os.OpenFile(damaged, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt([]byte("damage"), 5)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg.Progress = nil
	before := root.share.Sent()
	f, err := weights.Receive(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	assertEqual(t, dir, f.Dir())
	if again := root.share.Sent() - before; again < weights.ChunkBytes || again >= folder.Manifest().Bytes() {
		t.Errorf("%d of %d bytes were sent again", again, folder.Manifest().Bytes())
	}

	root.stop()
	if f, err = weights.Receive(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	assertEqual(t, dir, f.Dir())
}

// TestWrongBytes: a node that sends other bytes than its manifest names is left, and its bytes are not in any file.
func TestWrongBytes(t *testing.T) {
	dir := writeModel(t)
	good, _ := holder(t, "good", dir)
	bad, _ := holder(t, "bad", dir)
	at := filepath.Join(dir, "model-1.safetensors")
	text, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	lying, err := weights.Open(t.Context(), other, nil) // by the manifest that was copied
	if err != nil {
		t.Fatal(err)
	}
	text[7]++
	if err := os.WriteFile(filepath.Join(other, "model-1.safetensors"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	bad.share.Add("m", lying)

	var chunks atomic.Int64 // of the bad node, so that it is asked first
	away := func(*http.Request) bool { return chunks.Load() == 0 }
	good.block.Store(&away)
	counts := func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/3") { // the first chunk of the file
			chunks.Add(1)
		}
		return false
	}
	bad.block.Store(&counts)

	n := startNode(t, "n")
	f, err := weights.Receive(t.Context(), n.config(filepath.Join(t.TempDir(), "model"), bad, good))
	if err != nil {
		t.Fatal(err)
	}
	assertEqual(t, dir, f.Dir())
	if chunks.Load() == 0 {
		t.Error("the bad node was not asked for the wrong chunk: the test shows nothing")
	}
}

// TestNode: engines of one node that start together fetch their files once, and a folder that a node had before is served.
func TestNode(t *testing.T) {
	dir := writeModel(t)
	root := startNode(t, "root")
	had := weights.NewNode(root.config(""))
	t.Cleanup(had.Close)
	for range 2 {
		if err := had.Ensure(t.Context(), "m", dir, nil); err != nil {
			t.Fatal(err)
		}
	}
	n := startNode(t, "n")
	fetches := weights.NewNode(n.config("", root))
	t.Cleanup(fetches.Close)
	target := filepath.Join(t.TempDir(), "model")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if err := fetches.Ensure(t.Context(), "m", target, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	assertEqual(t, dir, target)
	size, err := weights.Size(dir)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the files were sent once", func() bool { return root.share.Sent() == size })
}

// TestRefusals: what a receiver is told, and what its errors name.
func TestRefusals(t *testing.T) {
	dir := writeModel(t)
	root, folder := holder(t, "root", dir)
	changed := t.TempDir()
	if err := os.WriteFile(filepath.Join(changed, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, _ := holder(t, "other", changed)
	full := startNode(t, "full")
	if err := os.WriteFile(filepath.Join(changed, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}

	n := startNode(t, "n")
	for _, c := range []struct {
		name   string
		peers  []*node
		change func(*weights.ReceiverConfig)
		want   string // of the error; empty means that it works
	}{
		{"no peers", nil, nil, "there are no peers"},
		{"no model", []*node{full}, nil, "does not have the model"},
		{"different files", []*node{root, other}, nil, "choose one with --id"},
		{"an identity", []*node{root, other}, func(cfg *weights.ReceiverConfig) { cfg.ID = folder.Manifest().ID() }, ""},
		{"another identity", []*node{root}, func(cfg *weights.ReceiverConfig) { cfg.ID[0]++ }, "it has the manifest"},
		{"a folder of others", []*node{root}, func(cfg *weights.ReceiverConfig) { cfg.Dir = changed }, "name another folder"},
	} {
		cfg := n.config(filepath.Join(t.TempDir(), "model"), c.peers...)
		cfg.Patience = 0
		if c.change != nil {
			c.change(&cfg)
		}
		if c.want == "" {
			cfg.Patience = time.Minute
		}
		_, err := weights.Receive(t.Context(), cfg)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

// TestShareIsBounded: a node sends to one receiver at a time, and to the next one when the first asks for nothing any more.
func TestShareIsBounded(t *testing.T) {
	root, folder := holder(t, "root", writeModel(t))
	get := func(path string) int {
		t.Helper()
		response, err := http.Get(root.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	chunk := "/weights/" + folder.Manifest().ID().String() + "/0?node="
	if a, b := get(chunk+"a"), get(chunk+"b"); a != http.StatusOK || b != http.StatusServiceUnavailable {
		t.Errorf("status %d and %d", a, b)
	}
	testkit.Eventually(t, "the place is free", func() bool { return get(chunk+"b") == http.StatusOK })
	for _, path := range []string{
		"/weights/x", "/weights/x/0?node=b", strings.Replace(chunk, "/0", "/-1", 1) + "b", strings.Replace(chunk, "/0", "/99", 1) + "b",
		chunk, chunk + "a,b", chunk + strings.Repeat("a", 129), "/", "/weights?model=none",
	} {
		if status := get(path); status != http.StatusNotFound {
			t.Errorf("%s: status %d", path, status)
		}
	}
}

// TestHostileManifests: manifests that would write outside of their folder, or take more room than their sums cover, are refused.
func TestHostileManifests(t *testing.T) {
	for _, text := range []string{
		``, `{}`, `[]`, `{"version":2,"chunk_bytes":4194304,"files":[]}`,
		file(`"../a"`, 0), file(`"/a"`, 0), file(`"a/../b"`, 0), file(`".hidden"`, 0), file(`"a/.b"`, 0), file(`"a\\b"`, 0), file(`"."`, 0),
		file(`""`, 0), file(`"a"`, -1), file(`"a"`, 1), file(`"a"`, 1<<62), file(`"`+strings.Repeat("a", 513)+`"`, 0),
		files(`{"name":"b","bytes":0,"sums":[]},{"name":"a","bytes":0,"sums":[]}`), files(`{"name":"a","bytes":0,"sums":[]},{"name":"a","bytes":0,"sums":[]}`),
		files(`{"name":"a","bytes":0,"sums":[]},{"name":"a/b","bytes":0,"sums":[]}`), files(`{"name":"a","bytes":1,"sums":["00"]}`),
	} {
		if m, err := weights.ParseManifest([]byte(text)); err == nil {
			t.Errorf("%.200s: accepted with %d bytes", text, m.Bytes())
		}
	}
	if _, err := weights.ParseManifest([]byte(file(`"a/b"`, 0))); err != nil {
		t.Error(err)
	}
}

func file(name string, size int64) string {
	return files(fmt.Sprintf(`{"name":%s,"bytes":%d,"sums":[]}`, name, size))
}

func files(list string) string {
	return `{"version":1,"chunk_bytes":4194304,"files":[` + list + `]}`
}

// FuzzManifest: no text panics, and each manifest that is accepted covers its files.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(file(`"a"`, 0)))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := weights.ParseManifest(text)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if !filepath.IsLocal(file.Name) {
				t.Errorf("name %q", file.Name)
			}
		}
	})
}
