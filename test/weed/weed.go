// Package weed runs an object store for tests and benchmarks: SeaweedFS, with its S3 server on loopback.
package weed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/test/loopback"
)

// The credentials of every server.
const (
	AccessKey = "stator"
	SecretKey = "a secret of tests"
)

// mostOutput bounds the output that is kept for errors.
const mostOutput = 1 << 20

// Server is one store. It keeps its data and its ports while it is stopped.
type Server struct {
	// Endpoint is the URL of the S3 server.
	Endpoint string

	config  child.Config
	process *child.Process
	output  output
}

// New chooses ports for a server with its data in dir. Start starts it.
func New(dir string) (*Server, error) {
	program, err := find()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`{"identities":[{"name":"a","credentials":[{"accessKey":%q,"secretKey":%q}],`+
		`"actions":["Admin","Read","Write","List","Tagging"]}]}`, AccessKey, SecretKey)
	if err := os.WriteFile(filepath.Join(dir, "s3.json"), []byte(config), 0o600); err != nil {
		return nil, err
	}

	s := &Server{}
	args := []string{"server", "-dir=" + dir, "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-s3.config=" + filepath.Join(dir, "s3.json"),
		"-master.volumeSizeLimitMB=1024", "-volume.max=20",
		"-s3.port.iceberg=0", "-s3.port.lance=0"} // these have fixed ports, which a second store would find taken
	// Ports that are not named have defaults, which another server may have.
	for _, name := range []string{"s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
		"filer.port", "filer.port.grpc"} {
		port, err := loopback.Port()
		if err != nil {
			return nil, err
		}
		args = append(args, "-"+name+"="+strconv.Itoa(port))
		if name == "s3.port" {
			s.Endpoint = "http://127.0.0.1:" + strconv.Itoa(port)
		}
	}
	s.config = child.Config{Path: program, Args: args, Dir: dir, Line: s.output.addLine}
	return s, nil
}

// find looks for the program in the checkout's virtual environment.
func find() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		program := filepath.Join(dir, ".venv", "bin", "weed")
		if _, err := os.Stat(program); err == nil {
			return program, nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return "", errors.New("find .venv/bin/weed: run make weed")
}

// Start starts the server and waits until it answers.
func (s *Server) Start(ctx context.Context) error {
	process, err := child.Start(s.config)
	if err != nil {
		return err
	}
	s.process = process

	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/healthz", nil)
		if err != nil {
			return err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-process.Exited():
			return fmt.Errorf("weed has ended:\n%s", s.output.text())
		case <-ctx.Done():
			s.Kill()
			return fmt.Errorf("weed does not answer: %w\n%s", ctx.Err(), s.output.text())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill ends the server without giving it time, and waits until it has ended. It may be stopped already.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	s.process.Stop(now)
	s.process = nil
}

// Core returns a client of a server, or of a proxy before it, with the right credentials.
func Core(address string) (*minio.Core, error) {
	return minio.NewCore(address, &minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: "us-east-1",
		BucketLookup: minio.BucketLookupPath})
}

// MakeBucket makes a bucket. It tries again while the server is starting its parts.
func (s *Server) MakeBucket(ctx context.Context, name string) error {
	core, err := Core(s.Endpoint[len("http://"):])
	if err != nil {
		return err
	}
	for {
		err := core.MakeBucket(ctx, name, minio.MakeBucketOptions{})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("make bucket %s: %w", name, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// output keeps the beginning of a process's output.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) addLine(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.buf.Len() < mostOutput {
		o.buf.WriteString(line + "\n")
	}
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
