// Package decision has the result of routing a request: the rank that takes it, or the refusal, with all reasons.
//
// A [Decision] prints its reasons as a table of the candidates, for people. Everything that it keeps of a request has a
// bound, because decisions live longer than requests: in [Recent], in the decision log and in queues.
package decision
