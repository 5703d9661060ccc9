// Package wire has the messages between an agent and its child stator-transfer, and the description of one side of transfers that two
// agents exchange.
//
// The agent sends a [Request], and the child a [Reply] with the same ID for each. A [Transfer] has its reply when it has ended. A
// frame is a length of four bytes, the lowest first, and a message in JSON. JSON costs about
// 10 µs for a transfer of 256 slots, which moves megabytes.
//
// Frames of the socket come from the own child or parent, and endpoints from other machines. Both are bounded and checked.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/stator-project/stator/internal/kv/block"
)

// The bounds of messages.
const (
	// MaxFrame bounds the bytes of a message.
	MaxFrame = 4 << 20
	// MaxSlots bounds the slots of one side: 2^20 blocks of 2 MiB are 2 TiB.
	MaxSlots = 1 << 20
	// MaxBatch bounds the slots of one transfer.
	MaxBatch = 1 << 16
	// MaxName bounds the bytes of the name of an agent.
	MaxName = 256
	// MaxMetadata bounds the bytes of NIXL's metadata in an endpoint. UCX needs about 350.
	MaxMetadata = 256 << 10
	// MaxBackends bounds the backends of an agent.
	MaxBackends = 8
)

// The operations of a request.
const (
	OpOpen       = "open"       // with the memory's file descriptor; the reply has the endpoint
	OpAddPeer    = "addPeer"    // with the endpoint; the reply has no data
	OpRemovePeer = "removePeer" // with its name; the reply has no data
	OpTransfer   = "transfer"   // the reply comes when the transfer has ended
	OpCancel     = "cancel"     // marks a transfer as abandoned; it has no reply of its own
)

// Request is a message from the agent to the child. Of the fields after Op, only the one that the operation needs is set.
type Request struct {
	// ID is unique among the requests to one child. A request to cancel has the ID of its transfer.
	ID       uint64    `json:"id"`
	Op       string    `json:"op"`
	Open     *Open     `json:"open,omitempty"`
	Transfer *Transfer `json:"transfer,omitempty"`
	Peer     *Endpoint `json:"peer,omitempty"` // to add
	Name     string    `json:"name,omitempty"` // of a peer
}

// Open describes the agent that the child creates.
type Open struct {
	// Name of the agent; unique among all processes.
	Name   string       `json:"name"`
	Layout block.Layout `json:"layout"`
	// Slots is the number of blocks in the memory, and Stride the bytes from one to the next.
	Slots    int       `json:"slots"`
	Stride   int       `json:"stride"`
	Backends []Backend `json:"backends"`
}

// Backend is a plugin of NIXL with its parameters.
type Backend struct {
	// Plugin is its name, such as UCX. Parameters that are not given have NIXL's defaults.
	Plugin string            `json:"plugin"`
	Params map[string]string `json:"params,omitempty"`
}

// Transfer copies blocks between local slots and slots of a peer.
type Transfer struct {
	Peer string `json:"peer"`
	// Write copies from the local slots to the slots of the peer. Otherwise, blocks are read from the peer.
	Write bool `json:"write,omitempty"`
	// Local and Remote have the same length. The i-th slots belong together.
	Local  []int32 `json:"local"`
	Remote []int32 `json:"remote"`
	// TimeoutMicros is the time after which the agent abandons the transfer. The child does not begin later.
	TimeoutMicros int64 `json:"timeoutMicros"`
}

// The codes of replies that are errors.
const (
	CodeBackend = "backend" // NIXL or its plugin; standard error has the cause
	CodeInvalid = "invalid" // the request is wrong
	CodeNoPeer  = "noPeer"  // no peer has that name
	CodeTimeout = "timeout" // the time was over before the child came to the transfer
)

// Reply is a message from the child to the agent.
type Reply struct {
	// ID is the ID of the request.
	ID uint64 `json:"id,omitempty"`
	// Code is empty for a success.
	Code string `json:"code,omitempty"`
	// Error is a text for people, and states what to change.
	Error string `json:"error,omitempty"`
	// Started is set if a failed transfer may have written some of its bytes.
	Started bool `json:"started,omitempty"`
	// Endpoint answers open.
	Endpoint *Endpoint `json:"endpoint,omitempty"`
}

// Conn sends and receives frames on a Unix socket, with at most one file descriptor each. Send is safe for concurrent use; Receive
// belongs to one goroutine.
type Conn struct {
	c  *net.UnixConn
	mu sync.Mutex // held while a frame is written
}

// NewConn takes a Unix stream socket over.
func NewConn(socket *os.File) (*Conn, error) {
	defer socket.Close()
	c, err := net.FileConn(socket)
	if err != nil {
		return nil, fmt.Errorf("use socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("use socket: it is not a Unix socket")
	}
	return &Conn{c: u}, nil
}

// Pair returns a connection and the socket for the child at its other end.
func Pair() (*Conn, *os.File, error) {
	// No process may start before both ends are marked: it would keep the socket open.
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}

	theirs := os.NewFile(uintptr(fds[1]), "socket")
	c, err := NewConn(os.NewFile(uintptr(fds[0]), "socket"))
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return c, theirs, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.c.Close() }

// headerLen is the length of the number before each message.
const headerLen = 4

// Send sends a message, and a file unless it is nil.
func (c *Conn) Send(message any, file *os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(text) > MaxFrame {
		return fmt.Errorf("send message: it has %d bytes, more than %d", len(text), MaxFrame)
	}
	frame := append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)

	c.mu.Lock()
	defer c.mu.Unlock()
	if file != nil {
		// The file goes with the header, because Receive looks for it there.
		rights := syscall.UnixRights(int(file.Fd()))
		if _, _, err := c.c.WriteMsgUnix(frame[:headerLen], rights, nil); err != nil {
			return fmt.Errorf("send file: %w", err)
		}
		frame = frame[headerLen:]
	}
	if _, err := c.c.Write(frame); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// Receive reads the next message. A file that came with it belongs to the caller, also after an error.
func (c *Conn) Receive(message any) (*os.File, error) {
	var header [headerLen]byte
	rights := make([]byte, syscall.CmsgSpace(4*4))
	n, oobn, _, _, err := c.c.ReadMsgUnix(header[:], rights)
	if err != nil {
		return nil, err
	}
	file := firstFile(rights[:oobn])
	if n == 0 {
		return file, io.EOF
	}
	if _, err := io.ReadFull(c.c, header[n:]); err != nil {
		return file, err
	}
	return file, readMessage(c.c, binary.LittleEndian.Uint32(header[:]), message)
}

// readMessage reads a message of n bytes.
func readMessage(r io.Reader, n uint32, message any) error {
	if n > MaxFrame {
		return fmt.Errorf("receive message: it has %d bytes, more than %d", n, MaxFrame)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if err := json.Unmarshal(text, message); err != nil {
		return fmt.Errorf("receive message: %w", err)
	}
	return nil
}

// firstFile returns the first file of a control message, and closes others.
func firstFile(control []byte) (file *os.File) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		// Further files would stay open as long as this process lives.
		for _, fd := range fds {
			if file != nil {
				_ = syscall.Close(fd)
				continue
			}
			file = os.NewFile(uintptr(fd), "received")
		}
	}
	return file
}
