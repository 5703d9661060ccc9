package nixl

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file has all conversions of pointers in the package.

// Mapping is a shared mapping of a file, usually of an anonymous one. Its address never changes and the garbage collector does not
// manage it, so NIXL may keep the address. It is safe for concurrent use; the owner of the bytes is who uses them.
type Mapping struct {
	data []byte
}

// Map maps the first size bytes of a file for reading and writing.
func Map(fd, size int) (*Mapping, error) {
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return &Mapping{data}, nil
}

// Bytes returns the mapped bytes.
func (m *Mapping) Bytes() []byte { return m.data }

// At describes a part of the mapping. It panics if the part is outside of it.
func (m *Mapping) At(offset, length int) Descriptor {
	part := m.data[offset : offset+length]
	return Descriptor{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(part)))), Len: uint64(length)}
}

// bytesAt copies n bytes of C memory.
func bytesAt(p *byte, n uintptr) []byte {
	if p == nil {
		return nil
	}
	return append([]byte{}, unsafe.Slice(p, n)...)
}

// textAt copies a C string.
func textAt(p *byte) string {
	if p == nil {
		return ""
	}
	n := uintptr(0)
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
