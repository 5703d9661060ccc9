// Package decisionlog is the decisions of a router as lines of JSON: what was asked, what was known
// of each candidate, what was chosen, and what came of it.
//
// A line has one of two things. A decision is a [route.Decision], as /debug/decisions has it, with the
// names of its prompt: the sequence hashes of every HashEvery-th complete block and of the last one,
// 16 hexadecimal digits each. Two prompts with one of them in common were equal up to there; what
// they said cannot be read from it. An end tells of a decision's request when it is over: whether
// the pick was obeyed, how long it took and how many bytes its answer had.
//
//	{"decision":{"ID":"x1","Worker":"w0",…},"hashEvery":32,"hashes":["a63f17518eae442b",…]}
//	{"end":{"id":"x1","at":"2026-01-02T03:04:05Z","outcome":"as_picked","firstByteMs":41.2,"lastByteMs":812.5,"responseBytes":5120}}
//
// Lines come in the order in which decisions were made, or requests ended. The package does no I/O
// of its own and holds nothing; its functions are safe for concurrent use.
package decisionlog
