// Package envoy starts, watches, drains and stops one Envoy.
//
// [Find] looks for the binary. [Start] runs it as a child process that ends with its parent, and
// [Process.Run] waits for it. A [Supervisor] restarts it, and drains it at the end. Package xds makes the
// bootstrap and everything else that Envoy is configured with.
//
// # Concurrency
//
// All methods are safe for concurrent use. Goroutines belong to Start, which ends them with the process,
// and to Supervisor.Run.
package envoy
