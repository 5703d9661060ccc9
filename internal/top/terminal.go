package top

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// The escapes around the program: another screen without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	eraseLine   = "\x1b[K"
)

const (
	// pollEvery bounds how long a wait for keys goes on after the end of the program.
	pollEvery = 100 * time.Millisecond
	// escapeWait is how long an escape may be the beginning of a longer key, which a network can divide.
	escapeWait = 50 * time.Millisecond
)

// Run shows the model in a terminal until a key or ctx ends it, and then restores the terminal. in and out are the same terminal; it is an
// error if they are none. Routers that do not answer are asked again.
func Run(ctx context.Context, in, out *os.File, m *Model, r Readers, inColour bool) error {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() {
		stop()
		running.Wait()
		_, _ = io.WriteString(out, leaveScreen)
		_ = term.Restore(int(in.Fd()), before)
	}()

	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	keys, readings := make(chan []Key), make(chan reading)
	texts := make(chan explanation, 1)
	running.Go(func() { readKeys(ctx, in, keys) })
	running.Go(func() { readOften(ctx, r, readings) })
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}

	asked := "" // the decision that is read
	shown := ""
	for !m.Quit() {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width < 1 || height < 1 {
			width, height = 80, 24
		}
		if id := m.Wanted(); id != "" && asked == "" {
			asked = id
			running.Go(func() { texts <- explanation{id, r.Explain(ctx, id)} })
		}
		// A line is erased before it is written: behind a line of full width a terminal would erase its last character.
		frame := toTop + eraseLine + strings.Join(m.Frame(width, height, inColour), "\r\n"+eraseLine)
		if frame != shown {
			if _, err := io.WriteString(out, frame); err != nil {
				return err
			}
			shown = frame
		}

		select {
		case <-ctx.Done():
			return nil
		case <-resized:
			shown = "" // the terminal may have moved its lines
		case d := <-readings:
			m.Read(d.data, d.err)
		case t := <-texts:
			asked = ""
			m.Explain(t.id, t.text)
		case pressed, open := <-keys:
			if !open {
				return errors.New("the terminal is gone")
			}
			for _, k := range pressed {
				m.Press(k, height)
			}
		}
	}
	return nil
}

// reading is the result of one call of [Readers.Read].
type reading struct {
	data Data
	err  error
}

// readOften reads the router until ctx ends.
func readOften(ctx context.Context, r Readers, to chan<- reading) {
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		d, err := r.Read(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case to <- reading{d, err}:
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readKeys reads keys until ctx ends, or the terminal does: then it closes to. It waits for input with a bound, because a read cannot be
// interrupted.
func readKeys(ctx context.Context, in *os.File, to chan<- []Key) {
	defer close(to)
	var rest []byte
	for ctx.Err() == nil {
		wait := pollEvery
		if len(rest) > 0 {
			wait = escapeWait
		}
		fds := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(wait.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}

		isLast := n == 0 // no more bytes have come
		if n > 0 {
			buf := make([]byte, 256)
			read, err := in.Read(buf)
			if err != nil {
				return
			}
			rest = append(rest, buf[:read]...)
		}
		var pressed []Key
		pressed, rest = parseKeys(rest, isLast)
		if len(pressed) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case to <- pressed:
		}
	}
}

// escapes are the keys that terminals send as escapes. The part before the last byte may have modifiers, which are ignored.
var escapes = map[string]Key{
	"A": Up, "B": Down, "H": Home, "F": End, "Z": BackTab, "5~": PageUp, "6~": PageDown, "1~": Home, "4~": End, "7~": Home, "8~": End,
}

// parseKeys returns the keys of bytes from a terminal, and the beginning of a key that is not complete. With isLast there is none.
func parseKeys(in []byte, isLast bool) (keys []Key, rest []byte) {
	for len(in) > 0 {
		k, size := parseKey(in)
		if size == 0 && !isLast {
			return keys, in
		}
		if size == 0 { // the escape was this key alone
			k, size = Escape, 1
			if in[0] != '\x1b' {
				k = otherKey
			}
		}
		if k != otherKey {
			keys = append(keys, k)
		}
		in = in[size:]
	}
	return keys, nil
}

// maxEscape bounds the bytes of a key.
const maxEscape = 16

// parseKey returns the first key and the number of its bytes; 0 if more bytes are needed.
func parseKey(in []byte) (k Key, size int) {
	switch c := in[0]; {
	case c == 3:
		return Interrupt, 1
	case c == '\r' || c == '\n':
		return Enter, 1
	case c == '\t':
		return Tab, 1
	case c == 0x7f || c == 8:
		return Backspace, 1
	case c == 0x1b:
		return parseEscape(in)
	case c < ' ':
		return otherKey, 1
	}

	if !utf8.FullRune(in) {
		return otherKey, 0
	}
	r, size := utf8.DecodeRune(in)
	if r == utf8.RuneError {
		return otherKey, size
	}
	return Key(r), size
}

// parseEscape returns the key of an escape: ESC [ and ESC O are the beginning of longer ones.
func parseEscape(in []byte) (k Key, size int) {
	if len(in) == 1 {
		return otherKey, 0
	}
	if in[1] != '[' && in[1] != 'O' {
		return Escape, 1
	}

	for i, c := range in[2:min(len(in), maxEscape)] {
		if c < '@' || c > '~' {
			continue
		}
		// Modifiers follow the first number: ESC [ 1 ; 5 A.
		number, _, _ := strings.Cut(string(in[2:2+i]), ";")
		name := number + string(c)
		if c != '~' {
			name = string(c)
		}
		if k, ok := escapes[name]; ok {
			return k, i + 3
		}
		return otherKey, i + 3
	}

	if len(in) >= maxEscape {
		return otherKey, maxEscape
	}
	return otherKey, 0
}
