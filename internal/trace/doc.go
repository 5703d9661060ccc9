// Package trace reads and generates traces: requests with the times at which they arrive, their prompts
// and the lengths of their answers.
//
// A trace is a [Source], a function that returns one [Arrival] after another. [Mooncake], [Azure],
// [Sessions], [Weka] and [Decisions] read published formats and this project's own decision logs; [Generated]
// and [Conversations] make arrivals by rule, the same ones for the same seed. [Take], [Jitter]
// and [Tile] change the arrivals of another source.
//
// Prompts are not token ids in a trace but references: equal block ids, segments or texts become equal
// tokens when [Tokens.Append] writes them. So a long trace needs little memory, and prompts share
// exactly the prefixes of the trace.
//
// Input is untrusted. Every row is bounded, and an error names the line. The package does no I/O: readers
// and folders are passed in. A source belongs to one goroutine.
package trace
