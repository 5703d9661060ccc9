// Package hub downloads the tokenizer, the chat template and the configuration of a model from a Hugging Face hub. It never downloads
// weights.
//
// # Layout
//
// The cache has the layout of huggingface_hub, so that a cache of engines can be mounted, and the other way round:
//
//	models--ORG--MODEL/refs/REVISION             the commit of a branch or tag
//	models--ORG--MODEL/blobs/CHECKSUM            the content of a file: SHA-256 if the hub has it in LFS, else git's SHA-1
//	models--ORG--MODEL/snapshots/COMMIT/FILE     a symbolic link to the blob
//
// # Order
//
// A file gets its name in the cache after its checksum was compared. tokenizer.json comes after all other files, and the reference
// after tokenizer.json. So a snapshot with tokenizer.json is complete, and one that was cut off is not used without the hub.
//
// # Concurrency
//
// A Client may be used by several goroutines, and a cache by several processes: each writes a file under
// a random name, and renames it when it is complete.
package hub
