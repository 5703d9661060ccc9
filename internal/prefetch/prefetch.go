// Package prefetch loads memory into the processor's caches before it is needed.
//
// The index of caches and the cache of tokens read many words that are spread over large tables, and compute early
// which. Ordinary loads would block the processor once about ten of them wait for memory. Go has no instruction for
// this, hence assembly.
package prefetch

// Most is the largest number of cache lines that one call of Lines takes.
const Most = 16
