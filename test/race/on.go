//go:build race

package race

// enabled reports whether the race detector is part of this program.
const enabled = true
