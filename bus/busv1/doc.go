// Package busv1 holds the messages of Stator's bus, generated from bus.proto by `make generate`.
package busv1
