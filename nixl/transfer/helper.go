package transfer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/nixl/wire"
)

// Helper runs stator-transfer, and starts it again when it has ended.
type Helper struct {
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{} // closed when the supervisor has ended

	mu       sync.Mutex
	current  *session // nil while there is none
	restarts int
}

// Start runs the child and returns when it is ready. An error states what to change: a path, a package to install, a parameter.
func Start(ctx context.Context, cfg Config) (*Helper, error) {
	cfg.setDefaults()
	h := &Helper{cfg: cfg, done: make(chan struct{})}
	first, err := h.startSession(ctx)
	if err != nil {
		return nil, err
	}
	h.setSession(first)
	cfg.Started(first.endpointText())

	life, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	go h.supervise(life, first)
	return h, nil
}

// startSession starts a child with a name that no other has. NIXL refuses the metadata of a new process under the name of an old one, as
// long as a peer has not removed that.
func (h *Helper) startSession(ctx context.Context) (*session, error) {
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, err
	}
	return startSession(ctx, &h.cfg, h.cfg.Name+"-"+hex.EncodeToString(nonce[:]))
}

// supervise waits for the end of the first child, and runs others after it until life ends. The first was started by Start, so that its
// caller gets the error of a wrong configuration. Later children fail for passing reasons, and are tried again with growing pauses.
func (h *Helper) supervise(life context.Context, first *session) {
	defer close(h.done)
	began := time.Now()
	next := first
	restarts := child.Supervisor{Restarting: func(err error, pause time.Duration) {
		h.cfg.Log.Warn("stator-transfer ended and starts again", "error", err, "pause", pause)
	}}

	_ = restarts.Run(life, func(ctx context.Context) (ready time.Duration, err error) {
		if next == nil {
			next, err = h.startSession(ctx)
			if err != nil {
				return 0, err
			}
			began = time.Now()
			h.setSession(next)
			h.cfg.Started(next.endpointText())
		}

		s := next
		next = nil
		select {
		case <-s.gone:
		case <-s.worn:
			s.endWhenIdle(ctx)
		case <-ctx.Done():
			s.killChild()
		}
		h.setSession(nil)
		return time.Since(began), s.err
	})
}

// setSession enters the current child. Between two children there is none, and calls return ErrStarting.
func (h *Helper) setSession(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s != nil && h.current == nil {
		h.restarts++
	}
	h.current = s
}

// session returns the current child, or an error while there is none.
func (h *Helper) session() (*session, error) {
	if s := h.sessionOrNil(); s != nil {
		return s, nil
	}
	select {
	case <-h.done:
		return nil, fmt.Errorf("%w: the helper was closed", ErrEnded)
	default:
		return nil, ErrStarting
	}
}

func (h *Helper) sessionOrNil() *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// Close ends the child and the helper. Transfers that run fail with ErrEnded.
func (h *Helper) Close() {
	h.cancel()
	<-h.done
}

// Fence ends the child, after which no slot is written any more, and has it started again. It returns when the old one is gone.
func (h *Helper) Fence() {
	if s := h.sessionOrNil(); s != nil {
		s.killChild()
	}
}

// Endpoint returns the description of the memory for peers, or nil while no child runs. It is a secret: it gives access to the memory.
func (h *Helper) Endpoint() []byte {
	s := h.sessionOrNil()
	if s == nil {
		return nil
	}
	return s.endpointText()
}

func (s *session) endpointText() []byte {
	text, _ := json.Marshal(s.endpoint) // of numbers, texts and bytes
	return text
}

// PID returns the process id of the child, or 0 while none runs.
func (h *Helper) PID() int {
	s := h.sessionOrNil()
	if s == nil {
		return 0
	}
	return s.process.PID()
}

// Restarts is the number of children that were started after the first.
func (h *Helper) Restarts() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.restarts - 1
}

// AddPeer adds a peer by its endpoint and returns its name. A peer with another layout is refused with block.ErrLayout, which names
// the field.
func (h *Helper) AddPeer(ctx context.Context, endpoint []byte) (name string, err error) {
	e, err := wire.ParseEndpoint(endpoint)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := h.cfg.Layout.Fits(&e.Layout); err != nil {
		return "", fmt.Errorf("peer %s: %w", e.Agent, err)
	}
	return e.Agent, h.call(ctx, &wire.Request{Op: wire.OpAddPeer, Peer: e})
}

// RemovePeer removes a peer, which is an error while slots are used by transfers with it. After Config.MaxReconnects of them,
// the child gets no new transfers, and is replaced when the running transfers have ended or were given up.
func (h *Helper) RemovePeer(ctx context.Context, name string) error {
	s, err := h.session()
	if err != nil {
		return err
	}
	s.mu.Lock()
	n := s.slots.count(name)
	s.mu.Unlock()
	if n > 0 {
		return fmt.Errorf("%w: %d transfers with %s run or are quarantined", ErrSlots, n, name)
	}

	if _, err := s.call(ctx, &wire.Request{Op: wire.OpRemovePeer, Name: name}, nil); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconnects++
	if s.reconnects == h.cfg.MaxReconnects {
		h.cfg.Log.Info("stator-transfer is replaced, because NIXL leaks sockets when peers are removed", "removed", s.reconnects)
		close(s.worn)
	}
	return nil
}

// endWhenIdle ends the child when no transfer waits, or when ctx ends. No transfer begins after the child was worn, and each has a timeout.
func (s *session) endWhenIdle(ctx context.Context) {
	const pause = 10 * time.Millisecond
	for ctx.Err() == nil {
		s.mu.Lock()
		n := s.slots.waiting()
		s.mu.Unlock()
		if n == 0 {
			break
		}
		time.Sleep(pause)
	}
	s.killChild()
}

// PeerDied states that the process of a peer is gone, which the caller has learned elsewhere. Its quarantined slots are freed when their
// transfers have ended. A peer that was stopped or cut off is not dead: its writes may still arrive.
func (h *Helper) PeerDied(ctx context.Context, name string) error {
	s := h.sessionOrNil()
	if s == nil {
		return nil // nothing is quarantined
	}
	s.mu.Lock()
	left := s.slots.died(name)
	s.mu.Unlock()
	if left > 0 {
		return nil // NIXL still uses what Remove would free
	}
	_, err := s.call(ctx, &wire.Request{Op: wire.OpRemovePeer, Name: name}, nil)
	return err
}

// Transfer copies blocks and returns when that is done. After an error that is a [Failure], the local slots are quarantined. The end of
// ctx has the effect of the timeout.
func (h *Helper) Transfer(ctx context.Context, t Transfer) error {
	s, err := h.session()
	if err != nil {
		return err
	}
	return s.transfer(ctx, t)
}

// call sends a request to the current child.
func (h *Helper) call(ctx context.Context, r *wire.Request) error {
	s, err := h.session()
	if err != nil {
		return err
	}
	_, err = s.call(ctx, r, nil)
	return err
}
