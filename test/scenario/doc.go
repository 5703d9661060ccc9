// Package scenario runs the real program, with a real Envoy and real engines' protocols, and
// looks at it as its users do: by HTTP, by its metrics, by its exit code.
//
// It contains tests alone. Each scenario ends by asserting that every request was served by
// the worker that was picked for it, because a dead router looks like a healthy system
// otherwise.
package scenario
