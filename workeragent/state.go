package workeragent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/stator-project/stator/internal/child"
)

// State is the folder in which an agent keeps the records by which it finds its surviving engines again. One
// agent at a time uses it.
//
//	lock            locked by the agent that runs
//	holder          the agent's name in the leases of its workers
//	NAME.json       the process of a surviving engine, while it runs
//	NAME.log        its output, see child.DetachedOutput
//	caches/NAME/R   the cache of its rank R, as it was at one position in its events
//	sockets/        the sockets of all engines' KV events
//
// It is not safe for concurrent use for the same worker.
type State struct {
	dir    string
	holder string
	lock   *os.File
}

// engineRecord is the file of one surviving engine.
type engineRecord struct {
	Holder child.Identity `json:"holder"`
	// PID is the engine's own process id.
	PID int `json:"pid"`
	// Port is the port of its HTTP server.
	Port int `json:"port"`
	// TransferPort is the first port of its sockets for transfers of KV caches; 0 if it has none.
	TransferPort int `json:"transferPort,omitempty"`
	// Epoch is the worker's epoch, in which routers know the engine's cache.
	Epoch uint64 `json:"epoch"`
	// Command is a hash of the command line. Another one needs another process.
	Command string `json:"command"`
}

// recordSuffix ends the names of files of surviving engines, and maxRecord bounds their bytes.
const (
	recordSuffix = ".json"
	maxRecord    = 16 << 10
	maxHolder    = 100
)

// OpenState opens the folder of an agent, and makes it if it does not exist. It is an error if another agent
// uses it.
func OpenState(dir string) (*State, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "sockets"), 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	// A user who could write here could have the agent adopt and stop processes.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}

	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("state folder %s: another agent uses it: give each agent its own --state-dir", dir)
	}
	s := &State{dir: dir, lock: lock}
	if err := s.readHolder(); err != nil {
		s.Close()
		return nil, fmt.Errorf("open state: %w", err)
	}
	s.removeStaleSockets()
	return s, nil
}

// removeStaleSockets removes the sockets and options files of engines that ended with an agent that was killed: the files of
// ports that no record of a surviving engine has.
func (s *State) removeStaleSockets() {
	kept := map[string]bool{}
	records, _ := filepath.Glob(filepath.Join(s.dir, "*"+recordSuffix)) // in a folder with *?[ in its name all is kept
	for _, path := range records {
		r, err := readRecord(path)
		if err != nil {
			return // whose sockets are whose is not known
		}
		kept[strconv.Itoa(r.Port)] = true
	}

	sockets, _ := filepath.Glob(filepath.Join(s.Sockets(), "[0-9]*-*"))
	for _, path := range sockets {
		if port, _, _ := strings.Cut(filepath.Base(path), "-"); !kept[port] {
			_ = os.Remove(path)
		}
	}
}

// readRecord reads the file of one surviving engine.
func readRecord(path string) (r engineRecord, err error) {
	file, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer func() { _ = file.Close() }()
	err = json.NewDecoder(io.LimitReader(file, maxRecord)).Decode(&r)
	return r, err
}

// readHolder reads the agent's name in leases, and chooses one the first time.
func (s *State) readHolder() error {
	path := filepath.Join(s.dir, "holder")
	text, err := os.ReadFile(path)
	if err == nil && len(text) > 0 && len(text) <= maxHolder {
		s.holder = string(text)
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.holder = rand.Text()
	return os.WriteFile(path, []byte(s.holder), 0o600)
}

// Holder returns the name by which the agents that use this folder, one after the other, hold their leases. It is
// empty without a folder.
func (s *State) Holder() string {
	if s == nil {
		return ""
	}
	return s.holder
}

// Close lets another agent use the folder.
func (s *State) Close() { _ = s.lock.Close() }

// Sockets returns the folder for the sockets of engines.
func (s *State) Sockets() string { return filepath.Join(s.dir, "sockets") }

// output returns the file with the output of a worker's engine.
func (s *State) output(worker string) string { return filepath.Join(s.dir, worker+".log") }

// save records an engine that was started. The file is complete or not there. The caches of an earlier process are removed.
func (s *State) save(worker string, r engineRecord) error {
	s.forgetCaches(worker)
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record engine %s: %w", worker, err)
	}
	path := filepath.Join(s.dir, worker+recordSuffix)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("record engine %s: %w", worker, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("record engine %s: %w", worker, err)
	}
	return nil
}

// forget removes the record of an engine that has ended.
func (s *State) forget(worker string) {
	_ = os.Remove(filepath.Join(s.dir, worker+recordSuffix))
	s.forgetCaches(worker)
}

// find returns the running engine of a worker. ok is false if there is none.
func (s *State) find(worker string) (_ engineRecord, engine *child.Detached, ok bool) {
	r, err := readRecord(filepath.Join(s.dir, worker+recordSuffix))
	if err != nil {
		return r, nil, false
	}
	engine, ok = child.Adopt(r.Holder, r.PID)
	return r, engine, ok
}

// StopEngines stops the surviving engines that keep does not list, and waits until they have ended. Those
// still there when ctx ends are killed.
func (s *State) StopEngines(ctx context.Context, keep map[string]bool, log *slog.Logger) error {
	files, err := filepath.Glob(filepath.Join(s.dir, "*"+recordSuffix))
	if err != nil {
		return errors.New("list engines: the name of the state folder must not have the characters *?[")
	}

	var all sync.WaitGroup
	defer all.Wait()
	for _, path := range files {
		worker := strings.TrimSuffix(filepath.Base(path), recordSuffix)
		if keep[worker] {
			continue
		}
		all.Go(func() {
			if _, engine, ok := s.find(worker); ok {
				log.Info("stopping an engine that has survived its agent", "worker", worker, "pid", engine.PID())
				engine.Stop(ctx)
			}
			s.forget(worker)
		})
	}
	return nil
}
