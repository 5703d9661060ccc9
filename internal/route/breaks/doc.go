// Package breaks finds places in prompts that keep caches from being hit.
//
// Such a place has a date, an identifier or another text near the beginning that differs from one prompt to the next, while the text
// behind it is the same again. All tokens behind it are computed again in every request, although an engine has computed the same text
// before.
//
// A [Watch] compares each prompt with the one before it of the same family, and [Watch.Found] lists the places. It knows where a place is,
// of which kind its text is and how many tokens it costs, and never the text.
//
// # Families
//
// Two prompts are of one family if the longest line near their beginnings is the same, for one adapter and cache salt: that line names a
// system prompt. A prompt of a client's session is compared with the last one of the session in the family, too. There any
// difference counts. Between sessions only those count that are a date, a time, an identifier or a number: two users may have
// different names in one system prompt.
//
// # Kept of a prompt
//
// Of the last prompt of a family a sketch is kept, until a newer one or another family takes its memory:
//
//	part of the prompt                       kept
//	---------------------------------------  -----------------------------------
//	its first segment, which is often the    a hash of each of the first 64 lines,
//	  system message with the tools            and one of the rest
//	each of the 128 segments behind it       the hash that the memory of prompts has
//	the line that differed last              a hash of each of its first 32 words
//
// The hashes have 32 bits and a secret seed. Text is read only while its own request is decided. So the first difference in a line
// gives its words, and the second one the word that differs, whose kind is then read from the newer prompt.
//
// # What counts
//
// At most three lines in a row differ, then at least 256 tokens are the same again. Edits at the end, other system prompts, inserted lines
// and compacted conversations are none of that. The cost is the part of these tokens that no rank has in its cache, by the index: a
// second version of a system prompt that is in use beside the first one is computed once, and costs nothing after that.
// A place that has broken three requests is listed, until it breaks none for an hour. A text within the longest line, or behind the
// first segment, is not found.
//
// # Bounds and concurrency
//
// A Watch keeps at most 2,048 sketches of about a kilobyte and 32 places. It allocates nothing once they are there. The families are in
// shards with a lock each; all methods are safe for concurrent use.
package breaks
