// Package decisionlog defines the decision log: a router's decisions and the ends of their requests,
// as lines of JSON.
//
// The first line that a router writes to a file has the version of the format. Every other line is one
// of two things. A decision is a [Decision], which /debug/decisions shows too, with hashes of its prompt:
// the sequence hashes of every HashEvery-th complete block and of the last one, 16 hexadecimal digits
// each. Two prompts with a hash in common are equal up to that block. The hashes do not reveal the text.
// An end is written when the request of a decision is over: whether the pick was obeyed, how long the
// request took and how many bytes its answer had.
//
//	{"version":1,"format":"stator-decisions"}
//	{"decision":{"id":"x1","worker":"w0",…},"hash_every":32,"hashes":["a63f17518eae442b",…]}
//	{"end":{"id":"x1","at":"2026-01-02T03:04:05Z","outcome":"as_picked","first_byte_ms":41.2,"last_byte_ms":812.5,"response_bytes":5120}}
//
// Decisions are in the order in which they were made, and ends in the order in which requests ended. A
// router that opens an existing file appends a version line before it appends more.
//
// The same types are written and read, so a reader of this package understands every line that a writer
// of the same version wrote. The package does no I/O. Its functions are safe for concurrent use; a
// [Reader] belongs to one goroutine.
package decisionlog
