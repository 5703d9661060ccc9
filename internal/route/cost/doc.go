// Package cost turns the measurements of a candidate rank into one number and its reasons.
//
// There are two functions. [Delay], the default, counts in milliseconds: how long this request
// would wait and be computed there, and how much that would hold up others. [Weights] is NVIDIA
// Dynamo's, in blocks: the work that the request adds to the rank or finds there, less the work that
// the rank's cache saves. A score depends on other candidates only through
// [Request.MinPrefillTokens]. The package does not choose: package pick does.
//
// All functions are pure and safe for concurrent use.
package cost
