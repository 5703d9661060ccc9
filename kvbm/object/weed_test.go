package object_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stator-project/stator/kvbm/object"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/test/weed"
	"go.uber.org/goleak"
)

// largeBlock is the size of a block that makes 64 blocks a pack of 16 MiB.
const largeBlock = 256 << 10

// openS3 returns a bucket that is reached through a proxy.
func openS3(t *testing.T, endpoint, bucket string, change func(*object.S3Config)) *object.S3 {
	t.Helper()
	cfg := object.S3Config{Endpoint: endpoint, Bucket: bucket, PathStyle: true, AccessKey: weed.AccessKey, SecretKey: weed.SecretKey}
	if change != nil {
		change(&cfg)
	}
	s, err := object.OpenS3(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func largeConfig(bucket object.Bucket, node string) object.Config {
	cfg := config(bucket)
	cfg.BlockBytes = largeBlock
	cfg.PackBytes = 16 << 20
	cfg.Node = node
	cfg.LearnEvery = 200 * time.Millisecond
	return cfg
}

// runS3 runs a tier until it is healthy.
func runS3(t *testing.T, cfg object.Config) (tier *object.Tier, stop func()) {
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
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return tier, stop
}

func healthy(t *testing.T, tier *object.Tier) {
	t.Helper()
	testkit.Eventually(t, "healthy", func() bool { return tier.Stats().State == object.Healthy })
}

// fails waits until a tier fails with a reason. Meanwhile it loads, and no call may take longer than its deadline.
func fails(t *testing.T, tier *object.Tier, reason string) {
	t.Helper()
	keys, _ := someBlocks(1, 64, 1)
	const deadline = 3 * time.Second
	testkit.Eventually(t, "failing: "+reason, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		began := time.Now()
		tier.Load(ctx, keys[:1], slots(1, largeBlock))
		if took := time.Since(began); took > deadline+10*time.Second {
			t.Fatalf("a load with a deadline of %v took %v", deadline, took)
		}
		return tier.Stats().State == object.Failing
	})

	began := time.Now()
	err := tier.Store(space.Key([]byte("another")), make([]byte, largeBlock))
	if took := time.Since(began); !errors.Is(err, object.ErrUnavailable) || !strings.Contains(err.Error(), reason) || took > 10*time.Second {
		t.Errorf("after %v: %v, wanted %q", took, err, reason)
	} else {
		t.Logf("%v", err)
	}
}

// TestSeaweedFS runs tiers against a real S3 server.
func TestSeaweedFS(t *testing.T) {
	before := goleak.IgnoreCurrent()
	server, err := weed.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer goleak.VerifyNone(t, before)
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer server.Kill()
	for _, name := range []string{"blocks", "gone", "slow"} {
		if err := server.MakeBucket(ctx, name); err != nil {
			t.Fatal(err)
		}
	}

	// In this order: the server is stopped by the last of them.
	t.Run("restart", func(t *testing.T) { seaweedRestart(t, server) })
	t.Run("racers", func(t *testing.T) { seaweedRacers(t, server) })
	t.Run("missing", func(t *testing.T) { seaweedMissing(t, server) })
	t.Run("pages", func(t *testing.T) { seaweedPages(t, server) })
	t.Run("bucket gone", func(t *testing.T) { seaweedBucketGone(t, server) })
	t.Run("credentials", func(t *testing.T) { seaweedCredentials(t, server) })
	t.Run("clock", func(t *testing.T) { seaweedClock(t, server) })
	t.Run("slow", func(t *testing.T) { seaweedSlow(t, server) })
	t.Run("server ends", func(t *testing.T) { seaweedEnds(t, server) })
}

// seaweedRestart stores 160 blocks, and loads them from a fresh node.
func seaweedRestart(t *testing.T, server *weed.Server) {
	p := newProxy(t, server.Endpoint)
	writer, stop := runS3(t, largeConfig(openS3(t, p.URL, "blocks", nil), "node1"))
	healthy(t, writer)
	keys, data := someBlocks(1, 160, largeBlock)
	p.requests()
	storeAll(t, writer, keys, data)
	flush(t, writer)
	puts := slices.DeleteFunc(p.requests(), func(r string) bool { return !strings.HasPrefix(r, "PUT") })
	if len(puts) != 6 {
		t.Errorf("160 blocks were written by %d requests, and not by two for each of three packs: %q", len(puts), puts)
	}
	stop()

	reader, stop := runS3(t, largeConfig(openS3(t, p.URL, "blocks", nil), "node2"))
	testkit.Eventually(t, "learn", func() bool { return reader.Match(keys) == 160 })
	stop() // so that only loads send requests
	reader, stop = runS3(t, func() object.Config {
		cfg := largeConfig(openS3(t, p.URL, "blocks", nil), "node2")
		cfg.LearnEvery = time.Hour
		return cfg
	}())
	defer stop()
	testkit.Eventually(t, "learn", func() bool { return reader.Match(keys) == 160 })

	p.requests()
	loadAll(t, reader, keys[:64], data[:64])
	if got := p.requests(); len(got) != 1 || !strings.HasSuffix(got[0], " bytes=0-16777215") {
		t.Errorf("a pack of 64 blocks was read by %q", got)
	}
	loadAll(t, reader, keys[8:16], data[8:16])
	if got := p.requests(); len(got) != 1 || !strings.HasSuffix(got[0], " bytes=2097152-4194303") {
		t.Errorf("8 blocks of a pack were read by %q", got)
	}
	loadAll(t, reader, keys, data)
	if got := p.requests(); len(got) != 3 {
		t.Errorf("three packs were read by %q", got)
	}
}

// seaweedRacers has 16 writers of one name: one of them makes the object.
func seaweedRacers(t *testing.T, server *weed.Server) {
	for round := range 2 {
		var won atomic.Int64
		var wait sync.WaitGroup
		for i := range 16 {
			s := openS3(t, server.Endpoint, "blocks", nil)
			wait.Go(func() {
				created, err := s.PutIfAbsent(t.Context(), fmt.Sprintf("race/%d", round), bytes.Repeat([]byte{byte(i)}, 1000))
				if err != nil {
					t.Error(err)
				}
				if created {
					won.Add(1)
				}
			})
		}
		wait.Wait()
		if won.Load() != 1 {
			t.Errorf("round %d: %d writers made the object", round, won.Load())
		}
	}
}

// seaweedMissing reads and deletes missing objects, and reads behind the end.
func seaweedMissing(t *testing.T, server *weed.Server) {
	s := openS3(t, server.Endpoint, "blocks", nil)
	if _, err := s.PutIfAbsent(t.Context(), "short", make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		offset int64
	}{{"not there", 0}, {"short", 5}, {"short", 100}} {
		if err := s.GetRange(t.Context(), c.name, c.offset, slots(1, 10), nil); !errors.Is(err, object.ErrMissing) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for range 2 {
		if err := s.Delete(t.Context(), "short"); err != nil {
			t.Error(err)
		}
	}
}

// seaweedPages lists 25 names, ten at a time.
func seaweedPages(t *testing.T, server *weed.Server) {
	s := openS3(t, server.Endpoint, "blocks", nil)
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprintf("pages/%02d", i))
		if _, err := s.PutIfAbsent(t.Context(), want[i], make([]byte, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	after := ""
	for more := true; more; {
		page, next, err := s.List(t.Context(), "pages/", after, 10)
		if err != nil || len(page) > 10 {
			t.Fatalf("%d names, error %v", len(page), err)
		}
		for _, o := range page {
			got = append(got, o.Name)
			if o.Size != int64(len(got)) {
				t.Errorf("%+v has a wrong size", o)
			}
		}
		more = next
		after = page[len(page)-1].Name
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// seaweedBucketGone removes the bucket of a healthy tier, and makes it again.
func seaweedBucketGone(t *testing.T, server *weed.Server) {
	tier, _ := runS3(t, largeConfig(openS3(t, server.Endpoint, "gone", nil), "node1"))
	healthy(t, tier)
	core, err := weed.Core(strings.TrimPrefix(server.Endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	for o := range core.ListObjectsIter(t.Context(), "gone", minio.ListObjectsOptions{Recursive: true}) {
		if err := core.RemoveObject(t.Context(), "gone", o.Key, minio.RemoveObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := core.RemoveBucket(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	fails(t, tier, `bucket "gone" does not exist`)
	if err := server.MakeBucket(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	healthy(t, tier)
}

func seaweedCredentials(t *testing.T, server *weed.Server) {
	wrongKey := openS3(t, server.Endpoint, "blocks", func(c *object.S3Config) { c.AccessKey = "someone" })
	tier, _ := runS3(t, largeConfig(wrongKey, "node1"))
	fails(t, tier, "the credentials are wrong or have expired (InvalidAccessKeyId)")

	wrongSecret := openS3(t, server.Endpoint, "blocks", func(c *object.S3Config) { c.SecretKey = "guessed" })
	tier, _ = runS3(t, largeConfig(wrongSecret, "node1"))
	fails(t, tier, "the credentials are wrong or have expired (SignatureDoesNotMatch)")
}

// seaweedClock signs the requests again with a time that is an hour off, as a host with a wrong clock does.
func seaweedClock(t *testing.T, server *weed.Server) {
	p := newProxy(t, server.Endpoint)
	tier, _ := runS3(t, largeConfig(openS3(t, p.URL, "blocks", nil), "node1"))
	healthy(t, tier)
	p.set(0, func(r *http.Request) { signAt(r, time.Now().Add(-time.Hour)) })
	fails(t, tier, "this host's clock differs too much")
	p.set(0, func(r *http.Request) { signAt(r, time.Now()) }) // so the signatures of the proxy are right
	healthy(t, tier)
}

// signAt signs a request with a payload that is not signed, as AWS describes its version 4 of signatures.
func signAt(r *http.Request, at time.Time) {
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stamp := at.UTC().Format("20060102T150405Z")
	payload := r.Header.Get("X-Amz-Content-Sha256")
	request := strings.Join([]string{r.Method, r.URL.EscapedPath(), strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20"),
		"host:" + r.Host, "x-amz-content-sha256:" + payload, "x-amz-date:" + stamp, "", "host;x-amz-content-sha256;x-amz-date", payload}, "\n")
	scope := stamp[:8] + "/us-east-1/s3/aws4_request"
	sum := sha256.Sum256([]byte(request))
	key := mac(mac(mac(mac([]byte("AWS4"+weed.SecretKey), stamp[:8]), "us-east-1"), "s3"), "aws4_request")
	signature := mac(key, "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(sum[:]))
	r.Header.Set("X-Amz-Date", stamp)
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+weed.AccessKey+"/"+scope+
		",SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature="+hex.EncodeToString(signature))
}

// seaweedSlow delays all answers by five seconds.
func seaweedSlow(t *testing.T, server *weed.Server) {
	p := newProxy(t, server.Endpoint)
	tier, _ := runS3(t, largeConfig(openS3(t, p.URL, "slow", nil), "node1"))
	healthy(t, tier)
	keys, data := someBlocks(1, 64, largeBlock)
	storeAll(t, tier, keys, data)
	flush(t, tier)
	p.set(5*time.Second, nil)
	fails(t, tier, "the store is slow")
	p.set(0, nil)
	healthy(t, tier)
	loadAll(t, tier, keys, data)
}

// seaweedEnds kills the server, and starts it again.
func seaweedEnds(t *testing.T, server *weed.Server) {
	tier, _ := runS3(t, largeConfig(openS3(t, server.Endpoint, "blocks", nil), "node3"))
	healthy(t, tier)
	keys, data := someBlocks(3, 64, largeBlock)
	storeAll(t, tier, keys, data)
	flush(t, tier)
	began := time.Now()
	server.Kill()
	fails(t, tier, "cannot be reached: start the store")

	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("the server answers again after %v", time.Since(began))
	healthy(t, tier)
	t.Logf("the tier is healthy after %v", time.Since(began))
	if got := tier.Match(keys); got != 64 {
		t.Fatalf("%d blocks are left", got)
	}
	testkit.Eventually(t, "load", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		dst := slots(64, largeBlock)
		for i, err := range tier.Load(ctx, keys, dst) {
			if err != nil || !bytes.Equal(dst[i], data[i]) {
				return false
			}
		}
		return true
	})
}
