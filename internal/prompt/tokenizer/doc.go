// Package tokenizer turns text into the token ids that an engine would see, exactly.
//
// [Load] reads a Hugging Face tokenizer.json. It refuses a file with a part that it cannot follow
// exactly, and names the part: a wrong token id would change every block hash after it, so an
// approximation is of no use. The package does not read files, does not render chat templates, and
// adds special tokens only where the caller asks for them.
//
// A [Tokenizer] is immutable and safe for concurrent use; a [Decoder] belongs to one goroutine.
package tokenizer
