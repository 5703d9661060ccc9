// Package tokenizer converts text to exactly the token ids that an engine computes.
//
// [Load] reads a Hugging Face tokenizer.json, and [LoadGGUF] the vocabulary of a .gguf file. Both refuse a file with a part that
// is not supported exactly, and name the part. A wrong token id would change all later block hashes of a prompt, so an
// approximation would be useless. The package does not open files, does not render chat templates, and adds special tokens only
// if the caller asks for them.
//
// A [Tokenizer] is immutable and safe for concurrent use.
package tokenizer
