// Package busv1 holds the messages of Stator's bus, generated from its two proto files by `make generate`.
package busv1
