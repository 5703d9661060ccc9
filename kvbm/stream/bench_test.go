package stream_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stator-project/stator/kvbm/stream"
	"github.com/stator-project/stator/test/process"
)

// BenchmarkFetch compares a transfer with a loop that sends the same blocks by net.Buffers and receives them by io.ReadFull, and does nothing
// else: no request, no credit, no checksum. Both run in turns. Reported are the medians, in MB/s, and the median of the ratios of two turns.
func BenchmarkFetch(b *testing.B) {
	for _, size := range []int{64 << 10, 256 << 10, 2 << 20} {
		for _, count := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%dKiB×%d", size>>10, count), func(b *testing.B) { compare(b, size, count) })
		}
	}
}

func compare(b *testing.B, size, count int) {
	l := layout
	l.Inner = size / (l.Layers * l.PageTokens * l.Outer * 2)
	m, keys := someBlocks(l, count)
	dst := make([][]byte, count)
	var buffers net.Buffers
	for i, k := range keys {
		dst[i] = make([]byte, size)
		buffers = append(buffers, m.blocks[k].Data)
	}

	server, err := stream.NewServer(stream.ServerConfig{Token: token, Node: "server", Layout: l, Source: m})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx, ln) }()
	defer func() { cancel(); <-ended }()
	client, err := stream.NewClient(stream.ClientConfig{Token: token, Node: "client", Layout: l, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	bare, stop := bareLoop(b, buffers)
	defer stop()

	fetch := func() {
		for _, r := range client.Fetch(b.Context(), keys, dst) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
	receive := func() {
		if _, err := bare.Write([]byte{1}); err != nil {
			b.Fatal(err)
		}
		for _, d := range dst {
			if _, err := io.ReadFull(bare, d); err != nil {
				b.Fatal(err)
			}
		}
	}

	// A turn takes some milliseconds, so that a moment in which another process runs does not decide it.
	repeat := max(1, (16<<20)/(size*count))
	turn := func(do func()) float64 {
		began := time.Now()
		for range repeat {
			do()
		}
		return float64(repeat*size*count) / 1e6 / time.Since(began).Seconds()
	}
	turn(fetch)
	turn(receive)
	var ours, theirs, ratios []float64
	for b.Loop() {
		mine := turn(fetch)
		other := turn(receive)
		ours = append(ours, mine)
		theirs = append(theirs, other)
		ratios = append(ratios, mine/other)
	}
	b.ReportMetric(middle(ours), "stream-MB/s")
	b.ReportMetric(middle(theirs), "bare-MB/s")
	b.ReportMetric(middle(ratios), "ratio")
	b.Logf("load average %s", process.LoadAverage())
}

func middle(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// bareLoop returns a connection that sends the buffers for each byte that it receives.
func bareLoop(b *testing.B, buffers net.Buffers) (conn net.Conn, stop func()) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for err == nil {
			if _, err = conn.Read(make([]byte, 1)); err == nil {
				list := slices.Clone(buffers)
				_, err = list.WriteTo(conn)
			}
		}
	}()
	conn, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	return conn, func() {
		_ = conn.Close()
		_ = ln.Close()
		<-ended
	}
}
