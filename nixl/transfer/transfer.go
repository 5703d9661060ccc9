// Package transfer copies KV blocks between machines with NIXL, which runs in a child process.
//
// A [Helper] runs the program stator-transfer, which maps the memory of the agent's blocks, a sealed memfd. Agents exchange endpoints
// over a channel of theirs that authenticates both sides: an endpoint is the right to read and write the memory. Then either side copies
// blocks:
//
//	h, err := transfer.Start(ctx, cfg)           // runs the child
//	send(h.Endpoint())                           // to the peer, by the caller's channel
//	peer, err := h.AddPeer(ctx, received)        // refuses another layout by the name of the field
//	err = h.Transfer(ctx, transfer.Transfer{Peer: peer, Local: []int32{4}, Remote: []int32{9}, Timeout: time.Second})
//
// # Quarantine
//
// NIXL cannot stop a transfer. When one has failed, or its time is over, bytes may still arrive in its local slots, or leave them. These
// slots are quarantined: the error is a [Failure] with the slots, and transfers with them are refused. These events end the quarantine:
//
//	event                                                  slots
//	the transfer has ended well after its time             free
//	it has ended with an error, and its peer is dead       free (PeerDied)
//	the child has ended, by a crash or by Fence            free, and all transfers that ran have failed
//
// To deregister memory or to forget a peer stops no write, so neither is in the table. Quarantine on the side of the peer is the peer's
// matter: a block counts as received when its checksum is right.
//
// # Restarts
//
// The helper starts the child again when it has ended, and after Config.MaxReconnects, because NIXL leaks sockets with each reconnection.
// The new child has a new name and endpoint, and no peers: Config.Started gets the endpoint, and the caller adds peers again.
//
// # Concurrency
//
// All methods are safe for concurrent use. A helper owns one goroutine that supervises the child, and one that reads its replies.
package transfer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/nixl/wire"
)

// The errors of transfers. [block.ErrLayout] is the error of a peer with another layout.
var (
	// ErrDeadline is the error of a transfer that was not done within its timeout.
	ErrDeadline = errors.New("the transfer was not done in time")
	// ErrEnded is the error of what ran when the child ended. No slot is written any more.
	ErrEnded = errors.New("stator-transfer has ended")
	// ErrStarting is the error while the child starts again.
	ErrStarting = errors.New("stator-transfer is starting; try again when it has started")
	// ErrBackend is an error of NIXL or of its plugin, such as the end of a peer.
	ErrBackend = errors.New("NIXL failed")
	// ErrNoPeer is the error of a peer that was not added to this child.
	ErrNoPeer = errors.New("no such peer")
	// ErrSlots is the error of slots that are quarantined or in use by another transfer.
	ErrSlots = errors.New("slots are in use")
	// ErrTooMany is the error of more transfers than Config.MaxTransfers.
	ErrTooMany = errors.New("too many transfers")
	// ErrInvalid is the error of wrong arguments.
	ErrInvalid = errors.New("invalid request")
)

// Failure is the error of a transfer that may still touch its local slots.
type Failure struct {
	// Err is the reason.
	Err error
	// Slots are the local slots, which are quarantined until Safe is closed.
	Slots []int32
	Safe  <-chan struct{}
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%v; %d local slots are quarantined", f.Err, len(f.Slots))
}

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }

// Transfer describes a copy of blocks.
type Transfer struct {
	// Peer is a name that AddPeer returned.
	Peer string
	// Write copies from here to the peer. Otherwise, blocks are read from the peer.
	Write bool
	// Local and Remote are slots, of which the i-th belong together.
	Local, Remote []int32
	// Timeout is required. Choose several times the duration of the transfer on a slow day: a timeout costs a quarantine.
	Timeout time.Duration
}

// The defaults of a Config.
const (
	defaultMaxTransfers  = 256
	defaultMaxReconnects = 1000
	defaultStartTime     = 20 * time.Second
)

// Config is read by Start.
type Config struct {
	// Program is the path of stator-transfer, and Library the path of libnixl_capi.so, see FindProgram and FindLibrary.
	Program, Library string
	// Name begins the names of the agents, such as the UID of the pod. Each child adds a nonce.
	Name string
	// Memory is a memfd sealed against changes of its size, such as the memfd of a host.Arena. The caller keeps it open until Close.
	Memory *os.File
	// Layout describes a block, Slots is the number of slots, and Stride the bytes from one to the next; default: the bytes of a block.
	Layout block.Layout
	Slots  int
	Stride int
	// Backends are the plugins; Env are environment variables of the child, beside those of this process.
	Backends []wire.Backend
	Env      []string
	// MaxTransfers bounds the transfers that run or are quarantined; default 256.
	MaxTransfers int
	// MaxReconnects is the number of RemovePeer calls after which the child is replaced; default 1000. A UCX agent leaks about two
	// sockets for each.
	MaxReconnects int
	// StartTime bounds how long a child may take to be ready; default 20 s. UCX needs about half a second.
	StartTime time.Duration
	// Started is called with the endpoint of each child, the first one included. It must not call the helper. Nil is not called.
	Started func(endpoint []byte)
	// Log gets restarts; nil is no log.
	Log *slog.Logger
}

// setDefaults fills in the fields that are not given.
func (c *Config) setDefaults() {
	if c.Stride == 0 && c.Layout.Validate() == nil {
		c.Stride = c.Layout.Bytes()
	}
	c.MaxTransfers = cmp.Or(c.MaxTransfers, defaultMaxTransfers)
	c.MaxReconnects = cmp.Or(c.MaxReconnects, defaultMaxReconnects)
	c.StartTime = cmp.Or(c.StartTime, defaultStartTime)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))

	if c.Started == nil {
		c.Started = func([]byte) {}
	}
}

// replyError makes an error of a reply. A code that this program does not have comes from another version of stator-transfer, and is an
// error all the same.
func replyError(r *wire.Reply) error {
	kinds := map[string]error{
		wire.CodeInvalid: ErrInvalid, wire.CodeNoPeer: ErrNoPeer, wire.CodeTimeout: ErrDeadline, wire.CodeBackend: ErrBackend,
	}
	switch kind := kinds[r.Code]; {
	case r.Code == "":
		return nil
	case kind != nil:
		return fmt.Errorf("%w: %s", kind, r.Error)
	}
	return fmt.Errorf("%w: code %q: %s", ErrBackend, r.Code, r.Error)
}
