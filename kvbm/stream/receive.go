package stream

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/stator-project/stator/internal/kv/block"
)

// readSummary receives a summary. One that is not awaited any more is dropped.
func (c *connection) readSummary(r *bufio.Reader, length int) error {
	content := make([]byte, length)
	if _, err := io.ReadFull(r, content); err != nil {
		return err
	}
	id, version := parseSummary(content)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.received++
	if a := c.ask; a != nil && a.id == id {
		a.version = version
		if length > summaryHeader {
			a.content = content[summaryHeader:]
		}
		c.ask = nil
		close(a.done)
	}
	return nil
}

// receiveFrames receives frames until the connection ends. Then it ends all transfers.
func (c *connection) receiveFrames() {
	defer close(c.ended)
	err := c.write(context.Background(), appendNumber(nil, kindCredit, uint32(c.window)))
	r := bufio.NewReaderSize(c.conn, 4<<10) // small, because the bytes of blocks should pass it by
	consumed := 0
	for err == nil {
		var n int
		n, err = c.readOne(r)
		consumed += n
		if err == nil && consumed >= c.window/4 {
			err = c.write(context.Background(), appendNumber(nil, kindCredit, uint32(consumed)))
			consumed = 0
		}
	}
	c.closeFor(fmt.Errorf("the connection to the peer ended: %w", err))

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.transfers {
		t.fail(c.err)
		close(t.done)
	}
	clear(c.transfers)
	c.failCalls()
	if c.ask != nil {
		c.ask.err = c.err
		close(c.ask.done)
		c.ask = nil
	}
}

// readOne receives a frame, and returns how many bytes of blocks it had.
func (c *connection) readOne(r *bufio.Reader) (n int, err error) {
	f, err := readFrame(r, true, c.bytes)
	if err != nil {
		return 0, err
	}
	switch f.kind {
	case kindBlock:
		return c.readBlock(r, f.length)
	case kindBusy:
		var id [4]byte
		if _, err := io.ReadFull(r, id[:]); err != nil {
			return 0, err
		}
		c.refused(binary.LittleEndian.Uint32(id[:]))
		return 0, nil
	case kindSummary:
		return 0, c.readSummary(r, f.length)
	case kindAnswer:
		return 0, c.readAnswer(r, f.length)
	}
	return 0, fmt.Errorf("%w: a frame of kind %d", ErrProtocol, f.kind)
}

// refused ends a transfer that the peer has no room for.
func (c *connection) refused(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received++
	if t := c.transfers[id]; t != nil {
		t.fail(ErrBusy)
		delete(c.transfers, id)
		close(t.done)
	}
}

// readBlock receives a block into its slice. Blocks of transfers that were given up are dropped.
func (c *connection) readBlock(r *bufio.Reader, length int) (n int, err error) {
	var b [blockHeader]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	f, err := parseBlock(b, length)
	if err != nil {
		return 0, err
	}
	t, err := c.begin(f)
	if err != nil {
		return 0, err
	}
	if t == nil {
		_, err := io.CopyN(io.Discard, r, int64(f.length))
		return int(f.length), err
	}

	var sum uint32
	if f.length > 0 {
		_, err = io.ReadFull(r, t.dst[f.index])
		if err == nil {
			sum = block.Sum(t.dst[f.index])
		}
	}
	c.finish(t, f, sum, err)
	return int(f.length), err
}

// begin finds the transfer of a block, or nil if it was given up.
func (c *connection) begin(f blockFrame) (*transfer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.received++
	t := c.transfers[f.id]
	switch {
	case t == nil && f.id > c.lastID:
		return nil, fmt.Errorf("%w: a block of request %d, which was not sent", ErrProtocol, f.id)
	case t == nil:
		return nil, nil
	case int64(f.index) >= int64(len(t.dst)) || t.answered[f.index]:
		return nil, fmt.Errorf("%w: block %d of request %d was not asked for, or came before", ErrProtocol, f.index, f.id)
	}
	t.receiving = true
	return t, nil
}

// finish notes the result of a block.
func (c *connection) finish(t *transfer, f blockFrame, sum uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	t.receiving = false
	if t.quiet != nil { // it was given up, and its results may be in use
		close(t.quiet)
		return
	}
	if err != nil {
		return // the connection ends
	}
	result := &t.results[f.index]
	switch {
	case f.length == 0:
		result.Err = ErrMissing
	case sum != f.sum:
		result.Err = fmt.Errorf("%w: their CRC32C is %08x and should be %08x", ErrDamaged, sum, f.sum)
	default:
		*result = Result{Sum: sum, Generation: f.generation}
	}
	t.answered[f.index] = true
	t.left--
	if t.left == 0 {
		delete(c.transfers, f.id)
		close(t.done)
	}
}
