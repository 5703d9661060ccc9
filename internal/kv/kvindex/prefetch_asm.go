//go:build amd64 || arm64

package kvindex

// prefetch begins to load the cache lines at the first n addresses, at least one, and waits for none. The
// addresses need not be valid.
//
// The index reads many words that are spread over its tables, and computes early which. Ordinary loads would
// block the processor once about ten of them are in flight. Go has no instruction for this, hence assembly.
//
//go:noescape
func prefetch(lines *[prefetches]uintptr, n int)
