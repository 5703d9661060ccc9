// Package eligible finds the ranks that may take a request: ready, allowed by its hints, with its adapter, not held back by their
// health, and not busy. If there is none, it has the reason.
package eligible
