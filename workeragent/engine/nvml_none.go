//go:build !cgo || !nvml || !linux

package engine

// nvmlGPUs finds nothing: the library is used by way of C, in programs that are built with the tag nvml.
func nvmlGPUs() (devices []string, ok bool) { return nil, false }
