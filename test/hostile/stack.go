package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/parts"
	"github.com/stator-project/stator/test/process"
)

// stack is a gateway: Envoy, its control plane, a router and two simulated engines, each as a process.
type stack struct {
	parts   *parts.Parts
	gateway string // host:port for clients
	admin   string // host:port of the router's admin pages
	router  int    // process id

	mu  sync.Mutex
	log strings.Builder // guarded by mu; warnings and errors of all parts
}

const (
	// engineSpeedup makes the engines' time negligible.
	engineSpeedup = "1000"
	// maxConnections bounds the connections of clients.
	maxConnections = 10_000
)

// start starts the parts and waits until a request is served.
func start(ctx context.Context, o *options) (s *stack, err error) {
	s = &stack{}
	s.parts, err = parts.New(o.stator, func(part, line string) {
		if !strings.Contains(line, "level=INFO") {
			s.note(part + ": " + line)
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.parts.Stop()
		}
	}()

	file, err := s.writeConfig()
	if err != nil {
		return nil, err
	}
	s.admin, err = loopback.Address()
	if err != nil {
		return nil, err
	}
	router, err := s.parts.RunRouter(file, s.admin)
	if err != nil {
		return nil, err
	}
	s.router = router.PID()
	err = s.parts.RunEnvoy(ctx, parts.Edge{Config: file, Envoy: o.envoy, MaxConnections: maxConnections, Log: noteWriter{s}})
	if err != nil {
		return nil, err
	}
	return s, s.awaitAnswer(ctx)
}

// writeConfig starts two engines and writes a configuration that lists them.
func (s *stack) writeConfig() (path string, err error) {
	s.gateway, err = loopback.Address()
	if err != nil {
		return "", err
	}
	// The memory of prompts is a cache that fills. It is small here, so that growth has another cause.
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\ngateway: {listen: %q, maxBodyBytes: %d, hintsFrom: everyone, hints: headers}\n"+
		"prompts: {memoryBytes: 1048576}\nmodels:\n- name: sim\n  path: \"builtin:sim\"\n  aliases: [alias]\n  workers:\n",
		config.APIVersion, config.Kind, s.gateway, maxBody)
	for i := range 2 {
		address, err := loopback.Address()
		if err != nil {
			return "", err
		}
		_, err = s.parts.Run("sim", "--listen-address", address, "--engine-speedup", engineSpeedup, "--log-level", "warn")
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf("  - {name: w%d, address: %q, engine: sim}\n", i, address)
	}
	path = filepath.Join(s.parts.Dir, "stator.yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// note keeps a line of a part's log.
func (s *stack) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const most = 1 << 20
	if s.log.Len() < most {
		s.log.WriteString(line + "\n")
	}
}

// noteWriter keeps written text as lines of the log.
type noteWriter struct{ s *stack }

func (w noteWriter) Write(p []byte) (int, error) {
	w.s.note(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// awaitAnswer sends a request until it is served.
func (s *stack) awaitAnswer(ctx context.Context) error {
	err := process.Await(ctx, 30*time.Second, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.gateway+completionsPath,
			strings.NewReader(`{"model":"sim","prompt":"Are you there?","max_tokens":1}`))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the gateway does not serve requests: %w\n%s", err, s.log.String())
	}
	return nil
}
