package object_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/object"
)

// memory is a bucket in memory. fail, if set, is called before each request, and its error is the result.
type memory struct {
	mu      sync.Mutex
	objects map[string][]byte
	log     []string // "PUT name", "GET name offset length", …
	fail    func(ctx context.Context, request string) error
}

func newMemory() *memory { return &memory{objects: map[string][]byte{}} }

func (m *memory) request(ctx context.Context, request string) error {
	m.mu.Lock()
	m.log = append(m.log, request)
	fail := m.fail
	m.mu.Unlock()
	if fail != nil {
		return fail(ctx, request)
	}
	return ctx.Err()
}

func (m *memory) PutIfAbsent(ctx context.Context, name string, data []byte) (bool, error) {
	if err := m.request(ctx, "PUT "+name); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, is := m.objects[name]; is {
		return false, nil
	}
	m.objects[name] = slices.Clone(data)
	return true, nil
}

func (m *memory) GetRange(ctx context.Context, name string, offset int64, dst [][]byte, filled func(i int)) error {
	size := 0
	for _, d := range dst {
		size += len(d)
	}
	if err := m.request(ctx, fmt.Sprintf("GET %s %d %d", name, offset, size)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	data := m.objects[name]
	if offset+int64(size) > int64(len(data)) {
		return fmt.Errorf("get %s: %w", name, object.ErrMissing)
	}
	for i, d := range dst {
		offset += int64(copy(d, data[offset:]))
		if filled != nil {
			filled(i)
		}
	}
	return nil
}

func (m *memory) Delete(ctx context.Context, name string) error {
	if err := m.request(ctx, "DELETE "+name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
	return nil
}

func (m *memory) List(ctx context.Context, prefix, after string, limit int) (page []object.Object, more bool, err error) {
	if err := m.request(ctx, "LIST "+prefix+" "+after); err != nil {
		return nil, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, data := range m.objects {
		if strings.HasPrefix(name, prefix) && name > after {
			page = append(page, object.Object{Name: name, Size: int64(len(data))})
		}
	}
	slices.SortFunc(page, func(a, b object.Object) int { return strings.Compare(a.Name, b.Name) })
	if len(page) > limit {
		return page[:limit], true, nil
	}
	return page, false, nil
}

// requests returns the requests that were sent with a prefix.
func (m *memory) requests(prefix string) (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.log {
		if strings.HasPrefix(r, prefix) && !strings.Contains(r, "/probe") {
			list = append(list, r)
		}
	}
	return list
}

func (m *memory) setFail(f func(ctx context.Context, request string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// edit changes the objects behind the tier's back.
func (m *memory) edit(change func(objects map[string][]byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m.objects)
}

// names returns the names of objects that contain part.
func (m *memory) names(part string) (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.objects {
		if strings.Contains(name, part) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

const blockBytes = 1024

var space = (&block.Layout{Model: "m", Layers: 1, PageTokens: 16, Outer: 2, Inner: 16, DType: "float16", TPSize: 1}).Space()

// someBlocks returns n blocks of random bytes with their keys. Equal seeds give equal blocks.
func someBlocks(seed uint64, n, size int) (keys []block.Key, data [][]byte) {
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	for i := range n {
		keys = append(keys, space.Key(fmt.Appendf(nil, "%d %d", seed, i)))
		b := make([]byte, size)
		_, _ = source.Read(b)
		data = append(data, b)
	}
	return keys, data
}

func slots(n, size int) (dst [][]byte) {
	for range n {
		dst = append(dst, make([]byte, size))
	}
	return dst
}

// config is the configuration of a tier with 64 blocks in a pack.
func config(bucket object.Bucket) object.Config {
	return object.Config{Bucket: bucket, Prefix: "kv/", Space: space, BlockBytes: blockBytes, Node: "node1", PackBytes: 64 * blockBytes,
		SweepEvery: 24 * time.Hour}
}

// run runs a tier until the returned function is called, which waits for it. The tier is healthy then, or the test's bubble is idle.
func run(t *testing.T, cfg object.Config) (tier *object.Tier, stop func()) {
	t.Helper()
	tier, err := object.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tier.Run(ctx, 5*time.Second)
	}()
	synctest.Wait()
	return tier, sync.OnceFunc(func() { cancel(); <-ended })
}

func storeAll(t *testing.T, tier *object.Tier, keys []block.Key, data [][]byte) {
	t.Helper()
	for i, k := range keys {
		if err := tier.Store(k, data[i]); err != nil {
			t.Fatal(err)
		}
	}
}

func flush(t *testing.T, tier *object.Tier) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := tier.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// loadAll loads blocks, and compares their bytes.
func loadAll(t *testing.T, tier *object.Tier, keys []block.Key, data [][]byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	dst := slots(len(keys), len(data[0]))
	for i, err := range tier.Load(ctx, keys, dst) {
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(dst[i], data[i]) {
			t.Fatalf("block %d has other bytes", i)
		}
	}
}
