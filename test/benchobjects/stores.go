package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/object"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/weed"
)

const (
	bucket     = "blocks"
	blockBytes = 256 << 10
	packBlocks = 64
	packBytes  = packBlocks * blockBytes
	readPacks  = 8 // that reads choose from
	writers    = 2 // packs at once
)

var space = (&block.Layout{Model: "bench", Layers: 1, PageTokens: 16, Outer: 2, Inner: 4096, DType: "float16", TPSize: 1}).Space()

// readRun is a run of neighbouring blocks in one of the first packs.
type readRun struct {
	pack, from, blocks int
}

// someRuns returns runs that lie at multiples of their length. Both clients read the same.
func someRuns(n, blocks int) (runs []readRun) {
	random := rand.New(rand.NewPCG(1, uint64(blocks)))
	for range n {
		runs = append(runs, readRun{random.IntN(readPacks), blocks * random.IntN(packBlocks/blocks), blocks})
	}
	return runs
}

// openStores returns the bare client and the tier.
func openStores(ctx context.Context, endpoint string) (list [2]store, err error) {
	core, err := weed.Core(strings.TrimPrefix(endpoint, "http://"))
	if err != nil {
		return list, err
	}
	data := make([]byte, packBytes)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	list[0] = &bare{core: core, data: data}
	list[1], err = openTier(ctx, endpoint, data)
	return list, err
}

// bare is minio.Core with the options that the tier uses.
type bare struct {
	core *minio.Core
	data []byte
	made int // packs
}

func (b *bare) put(ctx context.Context, packs int) error {
	from := b.made
	b.made += packs
	return process.Each(make(chan struct{}, writers), packs, func(i int) error {
		opts := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true}
		opts.SetMatchETagExcept("*")
		_, err := b.core.PutObject(ctx, bucket, bareName(from+i), bytes.NewReader(b.data), packBytes, "", "", opts)
		return err
	})
}

func bareName(i int) string { return fmt.Sprintf("bare/%06d", i) }

func (b *bare) read(ctx context.Context, runs []readRun, streams int) error {
	return eachRun(runs, streams, func(r readRun, slots [][]byte) error {
		var opts minio.GetObjectOptions
		from := int64(r.from) * blockBytes
		if err := opts.SetRange(from, from+int64(r.blocks)*blockBytes-1); err != nil {
			return err
		}
		body, _, _, err := b.core.GetObject(ctx, bucket, bareName(r.pack), opts)
		if err != nil {
			return err
		}
		defer body.Close()
		for _, s := range slots[:r.blocks] {
			if _, err := io.ReadFull(body, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bare) close() {}

// eachRun calls f for each run, in so many goroutines, each with slots for a pack.
func eachRun(runs []readRun, streams int, f func(r readRun, slots [][]byte) error) error {
	work := make(chan readRun, len(runs))
	for _, r := range runs {
		work <- r
	}
	close(work)
	errs := make([]error, streams)
	var wait sync.WaitGroup
	for i := range streams {
		wait.Go(func() {
			slots := make([][]byte, packBlocks)
			for s := range slots {
				slots[s] = make([]byte, blockBytes)
			}
			for r := range work {
				if err := f(r, slots); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// tier is the object tier, as the node agent runs it.
type tier struct {
	*object.Tier
	s3   *object.S3
	stop func()
	data []byte
	made int // packs
	keys [readPacks][]block.Key
}

func openTier(ctx context.Context, endpoint string, data []byte) (*tier, error) {
	s3, err := object.OpenS3(object.S3Config{Endpoint: endpoint, Bucket: bucket, PathStyle: true, AccessKey: weed.AccessKey,
		SecretKey: weed.SecretKey})
	if err != nil {
		return nil, err
	}
	opened, err := object.Open(object.Config{Bucket: s3, Space: space, BlockBytes: blockBytes, Secret: "a secret of the benchmark",
		Node: "bench", Writers: writers, Timeout: time.Minute, SlowAfter: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		opened.Run(running, 5*time.Second)
	}()
	t := &tier{Tier: opened, s3: s3, data: data, stop: func() { cancel(); <-ended }}

	for pack := range t.keys {
		for at := range packBlocks {
			t.keys[pack] = append(t.keys[pack], tierKey(pack, at))
		}
	}

	for t.Stats().State != object.Healthy {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return t, nil
}

func tierKey(pack, at int) block.Key { return space.Key(fmt.Appendf(nil, "%d %d", pack, at)) }

func (t *tier) put(ctx context.Context, packs int) error {
	from := t.made
	t.made += packs
	for i := range packs * packBlocks {
		at := i % packBlocks
		key := tierKey(from+i/packBlocks, at)
		data := t.data[at*blockBytes:][:blockBytes]
		err := t.Store(key, data)
		for ; errors.Is(err, object.ErrBusy) && ctx.Err() == nil; err = t.Store(key, data) {
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	return t.Flush(ctx)
}

func (t *tier) read(ctx context.Context, runs []readRun, streams int) error {
	return eachRun(runs, streams, func(r readRun, slots [][]byte) error {
		return errors.Join(t.Load(ctx, t.keys[r.pack][r.from:][:r.blocks], slots[:r.blocks])...)
	})
}

func (t *tier) close() {
	t.stop()
	t.s3.Close()
}
