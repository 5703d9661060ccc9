// Package cost turns what is known of a candidate rank into one number and its reasons.
//
// There are two functions. [Delay], the default, counts in milliseconds: how long this request
// would wait and be computed there, and how much that would hold up others. [Weights] is NVIDIA
// Dynamo's, in blocks: the work a request would add or find in front of it, less what the rank's
// cache saves. The package knows nothing of other candidates except the floor that
// [Request.MinPrefillTokens] carries, reads no clock, and does not choose: package pick does.
//
// All functions are pure and safe for concurrent use.
package cost
