//go:build amd64 || arm64

package prefetch

// Lines begins to load the cache lines at the first n addresses, at least one, and waits for none. The addresses
// need not be valid.
//
//go:noescape
func Lines(addresses *[Most]uintptr, n int)
