package engine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/stator-project/stator/nixl"
)

// The seals that a memory needs: its size must stay, because NIXL writes to the mapping.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// mapSealed maps a memory after a check of its seals and size.
func mapSealed(memory *os.File, size int) (*nixl.Mapping, error) {
	have, err := unix.FcntlInt(memory.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("memory is not a memfd: %w", err)
	}
	if have&seals != seals {
		return nil, fmt.Errorf("memory has seals %#x, and needs %#x: seal it against changes of its size and of its seals", have, seals)
	}
	if have&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return nil, fmt.Errorf("memory is sealed against writes (%#x), and peers have to write to it", have)
	}
	info, err := memory.Stat()
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	if info.Size() < int64(size) {
		return nil, fmt.Errorf("memory has %d bytes, fewer than the %d of its slots", info.Size(), size)
	}
	return nixl.Map(int(memory.Fd()), size)
}
