// Package tokenizer turns text into the token ids that an engine would see, exactly.
//
// [Load] reads a Hugging Face tokenizer.json. What it cannot do exactly it refuses with a
// sentence that names the part at fault: a wrong id would poison every block hash after it,
// and an approximation is never better than asking the engine. It does not read files, render
// chat templates or add special tokens of its own accord.
//
// A [Tokenizer] is immutable and safe for concurrent use; a [Decoder] belongs to one goroutine.
package tokenizer
