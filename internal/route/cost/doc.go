// Package cost turns what is known of a candidate rank into one number and its reasons.
//
// The number is in blocks of prefill: the work a request would add or find in front of it
// on that rank, less what the rank's cache saves. The package knows nothing of other
// candidates except the floor that [Request.MinPrefillTokens] carries, reads no clock, and
// does not choose: package pick does.
//
// All functions are pure and safe for concurrent use.
package cost
