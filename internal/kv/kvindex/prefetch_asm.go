//go:build amd64 || arm64

package kvindex

// prefetch asks for the cache lines at the first n addresses, at least one, which need not be
// valid, and waits for none.
// The index needs many words that lie all over its tables, and knows early which. Loads in
// their stead block the processor once it has about ten of them in flight; Go has no other way
// to say this.
//
//go:noescape
func prefetch(lines *[prefetches]uintptr, n int)
