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
