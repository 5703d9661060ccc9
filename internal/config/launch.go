package config

import "fmt"

// Devices returns the GPUs as texts: a file has indexes as numbers, and UUIDs as strings.
func (l *Launch) Devices() []string {
	var all []string
	for _, id := range l.GPUs {
		all = append(all, fmt.Sprint(id))
	}
	return all
}

// SetCount sets the number of processes. Bounds that the file does not set follow it.
func (l *Launch) SetCount(n int) {
	fixed := l.Min == l.Max
	l.Count = n
	if fixed {
		l.Min = n
	}
	l.Min = min(l.Min, n)
	l.Max = max(l.Max, n)
	if fixed {
		l.Max = n
	}
}
