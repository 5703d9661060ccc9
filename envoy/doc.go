// Package envoy starts, watches and stops one Envoy.
//
// [Find] looks for the binary, [Start] runs it as a child that cannot outlive its parent,
// and [Process.Run] waits for it. What Envoy is told to do is package xds's business.
//
// # Concurrency
//
// The child is waited for by package child; all methods may be called from any goroutine.
package envoy
