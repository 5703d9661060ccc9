package host

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Errors of Open.
var (
	// ErrSeals is the error of a file whose size could change.
	ErrSeals = errors.New("the size of the file is not sealed")
	// ErrSize is the error of a file whose size does not match the slots.
	ErrSize = errors.New("the size of the file does not fit")
)

// slotAlign divides the distance of two slots, so that disks and devices can transfer whole pages.
const slotAlign = 4096

// The bounds of an arena.
const (
	maxSlots     = 1 << 28
	maxSlotBytes = 1 << 30
	hugeBytes    = 2 << 20
)

// Config describes an arena. Both sides of one need the same.
type Config struct {
	// Slots is the number of slots, and SlotBytes the size of each.
	Slots, SlotBytes int
	// NoHugePages is whether ordinary pages are used even if the node has huge ones. Open ignores it.
	NoHugePages bool
}

// stride returns the distance of two slots in bytes.
func (c *Config) stride() int { return Stride(c.SlotBytes) }

// Stride returns the memory that a slot of a size needs, in bytes.
func Stride(slotBytes int) int { return (slotBytes + slotAlign - 1) / slotAlign * slotAlign }

func (c *Config) validate() error {
	if c.Slots < 1 || c.Slots > maxSlots || c.SlotBytes < 1 || c.SlotBytes > maxSlotBytes {
		return fmt.Errorf("%d slots of %d bytes: from 1 to %d slots of 1 to %d bytes are possible", c.Slots, c.SlotBytes,
			maxSlots, maxSlotBytes)
	}
	return nil
}

// Arena is mapped memory in slots.
type Arena struct {
	cfg    Config
	file   *os.File
	memory []byte // the whole mapping
	huge   bool

	ready atomic.Int64
	stop  chan struct{}
	touch sync.WaitGroup // the goroutine of the owner
}

// New makes an arena. Its pages come from the kernel at their first use, which takes long: a goroutine touches all of them, and
// ReadyBytes counts. Ordinary pages are not reserved, so New checks before whether there is memory for them: see ErrRoom.
func New(cfg Config) (*Arena, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("make host memory: %w", err)
	}

	a := &Arena{cfg: cfg, stop: make(chan struct{})}
	size := int64(cfg.Slots) * int64(cfg.stride())
	var err error
	if !cfg.NoHugePages {
		a.file, a.memory, err = create((size+hugeBytes-1)/hugeBytes*hugeBytes, true)
		a.huge = err == nil
	}
	if !a.huge {
		if err := checkRoom(os.DirFS("/"), size); err != nil {
			return nil, err
		}
		a.file, a.memory, err = create(size, false)
	}
	if err != nil {
		return nil, fmt.Errorf("make host memory of %d bytes: %w", size, err)
	}

	a.touch.Go(a.touchPages)
	return a, nil
}

// Open maps the arena of another process, whose file was received from it. The errors ErrSeals and ErrSize mean that New did not make the
// file with this configuration. The arena has its own descriptor: the given one stays the caller's.
func Open(file *os.File, cfg Config) (*Arena, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("open host memory: %w", err)
	}

	a := &Arena{cfg: cfg, stop: make(chan struct{})}
	size := int64(cfg.Slots) * int64(cfg.stride())
	var err error
	a.file, a.memory, a.huge, err = attach(file, size)
	if err != nil {
		return nil, fmt.Errorf("open host memory: %w", err)
	}
	a.ready.Store(a.Bytes()) // pages that the owner has not touched yet come at their first use
	return a, nil
}

// touchPages lets the kernel provide all pages, until Close. It writes no byte, because slots may be in use.
func (a *Arena) touchPages() {
	const step = 8 << 20
	for from := 0; from < len(a.memory); from += step {
		select {
		case <-a.stop:
			return
		default:
		}
		part := a.memory[from:min(from+step, len(a.memory))]
		if populate(part) != nil {
			return // the pages come at their first use
		}
		a.ready.Add(int64(len(part)))
	}
}

// Slot returns the memory of slot i. It panics if there is no such slot.
func (a *Arena) Slot(i int) []byte {
	if uint(i) >= uint(a.cfg.Slots) {
		panic(fmt.Sprintf("slot %d of %d", i, a.cfg.Slots))
	}
	from := i * a.cfg.stride()
	return a.memory[from : from+a.cfg.SlotBytes : from+a.cfg.SlotBytes]
}

// Index returns the slot whose memory Slot returned, or false if the bytes are not the beginning of a slot of this arena.
func (a *Arena) Index(data []byte) (i int, ok bool) {
	if len(data) == 0 || len(a.memory) == 0 {
		return 0, false
	}
	// Both addresses are constant, because the mapping is outside of the Go heap. An address below the mapping wraps, and is too far.
	from := uintptr(unsafe.Pointer(&data[0])) - uintptr(unsafe.Pointer(&a.memory[0]))
	stride := uintptr(a.cfg.stride())
	return int(from / stride), from < uintptr(a.cfg.Slots)*stride && from%stride == 0
}

// Slots returns the number of slots, and SlotBytes the size of each.
func (a *Arena) Slots() int { return a.cfg.Slots }

// SlotBytes returns the size of a slot.
func (a *Arena) SlotBytes() int { return a.cfg.SlotBytes }

// Bytes returns the size of the arena's memory.
func (a *Arena) Bytes() int64 { return int64(len(a.memory)) }

// ReadyBytes returns how many bytes can be used without a page fault. It stays below Bytes if the kernel refuses to provide them. In
// the arenas of Open it is the whole size, which the owner may still be touching.
func (a *Arena) ReadyBytes() int64 { return a.ready.Load() }

// HugePages reports whether the arena has huge pages.
func (a *Arena) HugePages() bool { return a.huge }

// File returns the file to pass to another process. It stays the arena's, which closes it.
func (a *Arena) File() *os.File { return a.file }

// Close unmaps the memory. No slice that Slot returned may be used any more.
func (a *Arena) Close() error {
	close(a.stop)
	a.touch.Wait()
	memory := a.memory
	a.memory = nil
	return errors.Join(unmap(memory), a.file.Close())
}
