package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/stator-project/stator/internal/kv/block"
)

// version is the version of the frames.
const version = 2

// kind is the kind of a frame.
type kind byte

const (
	kindHello kind = iota + 1
	kindRefused
	kindRequest
	kindCredit
	kindCancel
	kindBlock
	kindBusy
	kindAsk
	kindSummary
	kindCall
	kindAnswer
)

// The sizes of frames and their parts in bytes.
const (
	frameBytes  = 8
	blockHeader = 4 + 4 + 8 + 4 + 4
	keyBytes    = len(block.Key{})

	mostHello = 16 << 10 // texts of a layout may be escaped in JSON
	mostKeys  = 1024
	mostText  = 512

	summaryHeader = 4 + 8
)

// MostSummary is the greatest size of a summary in bytes.
const MostSummary = 8 << 20

// Errors of a transfer or a connection.
var (
	// ErrProtocol is the error of a peer that breaks the protocol. The connection is closed.
	ErrProtocol = errors.New("the peer does not keep to the protocol")
	// ErrMissing is the error of a block that the peer does not have.
	ErrMissing = errors.New("not in the peer's memory")
	// ErrDamaged is the error of a block whose bytes do not have the checksum that came with them.
	ErrDamaged = errors.New("the bytes from the peer are damaged")
	// ErrBusy is the error of a transfer that the peer has no room for.
	ErrBusy = errors.New("the peer has too many requests")
	// ErrStalled is the error of a transfer during which a peer sent nothing, or stopped in the middle of a block. The error of the
	// context is wrapped, too.
	ErrStalled = errors.New("the peer has stopped sending")
	// ErrClosed is the error of transfers after Close.
	ErrClosed = errors.New("the client is closed")
	// ErrSelf is the error of a connection to a server with the client's own name.
	ErrSelf = errors.New("the peer is this node itself")
	// ErrToken, ErrVersion and ErrFull are the errors of refused connections, besides [block.ErrLayout].
	ErrToken = errors.New("the token of the peer is another one, or something between the nodes reads the connection: " +
		"give both nodes the same token")
	ErrVersion = errors.New("the peer has another version of the protocol: run the same release on both nodes")
	ErrFull    = errors.New("the peer has too many connections")
	// ErrHandshake is the error of a peer that ends the handshake of TLS.
	ErrHandshake = errors.New("the peer has ended the handshake: it has too many at once, or is of a release without TLS")
)

// refusals are the first bytes of refused frames.
var refusals = map[byte]error{1: ErrToken, 2: ErrVersion, 3: ErrFull, 4: block.ErrLayout}

// appendFrame appends the header of a frame.
func appendFrame(b []byte, k kind, length int) []byte {
	b = append(b, byte(k), 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, uint32(length))
}

// frame is the header of a frame.
type frame struct {
	kind   kind
	length int
}

// readFrame reads a header, and checks it against the frames that a side may send.
func readFrame(r io.Reader, fromServer bool, blockBytes int) (f frame, err error) {
	var b [frameBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return f, err
	}
	f = frame{kind: kind(b[0]), length: int(binary.LittleEndian.Uint32(b[4:]))}
	if b[1] != 0 || b[2] != 0 || b[3] != 0 || !f.allowed(fromServer, blockBytes) {
		return f, fmt.Errorf("%w: a frame begins with %x", ErrProtocol, b)
	}
	return f, nil
}

// allowed reports whether a side may send a frame of this kind and length.
func (f frame) allowed(fromServer bool, blockBytes int) bool {
	switch f.kind {
	case kindHello:
		return f.length > 0 && f.length <= mostHello
	case kindRefused:
		return fromServer && f.length >= 1 && f.length <= 1+mostText
	case kindRequest:
		keys := f.length - 4
		return !fromServer && keys >= keyBytes && keys <= mostKeys*keyBytes && keys%keyBytes == 0
	case kindCredit, kindCancel:
		return !fromServer && f.length == 4
	case kindBlock:
		return fromServer && (f.length == blockHeader || f.length == blockHeader+blockBytes)
	case kindBusy:
		return fromServer && f.length == 4
	case kindAsk:
		return !fromServer && f.length == summaryHeader
	case kindSummary:
		return fromServer && f.length >= summaryHeader && f.length <= summaryHeader+MostSummary
	case kindCall:
		return !fromServer && f.length > 4 && f.length <= 4+MostCall
	case kindAnswer:
		return fromServer && f.length >= answerHeader && f.length <= answerHeader+MostAnswer
	}
	return false
}

// appendRequest appends a request frame.
func appendRequest(b []byte, id uint32, keys []block.Key) []byte {
	b = appendFrame(b, kindRequest, 4+len(keys)*keyBytes)
	b = binary.LittleEndian.AppendUint32(b, id)
	for _, k := range keys {
		b = append(b, k[:]...)
	}
	return b
}

// parseRequest reads the content of a request frame of an allowed length.
func parseRequest(b []byte) (id uint32, keys []block.Key) {
	id = binary.LittleEndian.Uint32(b)
	for b = b[4:]; len(b) >= keyBytes; b = b[keyBytes:] {
		keys = append(keys, block.Key(b[:keyBytes]))
	}
	return id, keys
}

// appendNumber appends a frame whose content is one number.
func appendNumber(b []byte, k kind, n uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendFrame(b, k, 4), n)
}

// appendSummary appends an ask, or the beginning of a summary with so many bytes.
func appendSummary(b []byte, k kind, id uint32, version uint64, content int) []byte {
	b = binary.LittleEndian.AppendUint32(appendFrame(b, k, summaryHeader+content), id)
	return binary.LittleEndian.AppendUint64(b, version)
}

// parseSummary reads what appendSummary has written after the header.
func parseSummary(b []byte) (id uint32, version uint64) {
	return binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[4:])
}

// blockFrame is the beginning of a block frame's content.
type blockFrame struct {
	id, index  uint32
	generation uint64
	sum        uint32
	length     uint32
}

func (f blockFrame) append(b []byte) []byte {
	b = appendFrame(b, kindBlock, blockHeader+int(f.length))
	b = binary.LittleEndian.AppendUint32(b, f.id)
	b = binary.LittleEndian.AppendUint32(b, f.index)
	b = binary.LittleEndian.AppendUint64(b, f.generation)
	b = binary.LittleEndian.AppendUint32(b, f.sum)
	return binary.LittleEndian.AppendUint32(b, f.length)
}

// parseBlock reads the content that append has written after the header. length is the length of the frame.
func parseBlock(b [blockHeader]byte, length int) (f blockFrame, err error) {
	f = blockFrame{
		id:         binary.LittleEndian.Uint32(b[:]),
		index:      binary.LittleEndian.Uint32(b[4:]),
		generation: binary.LittleEndian.Uint64(b[8:]),
		sum:        binary.LittleEndian.Uint32(b[16:]),
		length:     binary.LittleEndian.Uint32(b[20:]),
	}
	if int64(f.length) != int64(length-blockHeader) {
		return f, fmt.Errorf("%w: a block of %d bytes in a frame of %d", ErrProtocol, f.length, length)
	}
	return f, nil
}
