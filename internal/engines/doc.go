// Package engines has the facts about each kind of LLM engine in one place.
//
// A [Kind] has every fact that another part asks for: the names of its metrics, the dialect of its events, its command line,
// the options that the doctor advises. Each kind has a file. A new kind of an existing dialect and of an ordinary command line
// is a file here and its place in the list of engines.go: other packages ask [Kind] and have no list of their own.
//
// If a fact is code, as the decoder of a dialect is, a typed constant of the kind selects it, and the package that has the
// code tests that it accepts every kind. Files and leases name kinds: [Named] reports an unknown name, and [Of] takes it for
// [Exec]. Code names a kind by its variable, such as [VLLM], so that the compiler finds a wrong word.
//
// # Concurrency
//
// Kinds never change, so all goroutines may read them.
package engines
