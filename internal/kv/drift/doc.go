// Package drift compares the cached tokens that routing decisions promised with those that engines
// report to have found, and reports workers whose cache state must be rebuilt.
//
// An engine counts the prompt tokens that it looked up in its cache (queries), and the tokens that it found there (hits), for all its
// clients. A decision promises the tokens that the index has for the picked rank. If the index is wrong, engines find fewer tokens than
// promised, or more. Blocks that are not on the rank's device promise nothing: the engine may compute them, and finding them is no
// drift either.
//
// # Windows
//
// A window lies between two reports of one engine. Its promises were made to requests that were decided
// and ended within it, so the engine's counters include them for certain. The counters may include
// other clients' requests too, which were found or not. Therefore only a difference that no other
// requests can explain counts as drift.
//
// An example: in a window the engine looked up 10,000 tokens and found 6,000. The window's requests had
// 8,000 prompt tokens, so 2,000 tokens are other clients'. Of the 8,000, between 4,000 and 6,000 were
// found. Promises in that range are no drift. Promises of 7,000 have a ratio of (7,000-6,000)/8,000 =
// 0.125, and promises of 3,000 one of -(4,000-3,000)/8,000 = -0.125.
//
//	event                                        effect
//	-------------------------------------------  ----------------------------------------------
//	a request ends                               added to the requests of the next report
//	a report                                     these requests are part of the window for certain
//	a report, the window has Config.Tokens       judged; a new window begins
//	the ratio exceeds 0.25                       rebuild, unless the last was within Config.Rest
//	a report of another epoch, or with smaller   the window is discarded, and a new one begins
//	  counters
//
// # Missed promises
//
// An engine whose cache was reset while it was idle may not report that. The next request shows it: the engine finds none of the promised
// tokens. So beside the long windows there are short ones: the time since the engine has last found a token, for any client. If
// requests that it has counted since then were promised 256 tokens or more, the promises were missed:
//
//	event                                    effect
//	---------------------------------------  ---------------------------------------------------------
//	a report with more hits                  a new short window begins with it
//	a report without, that may not include   they count with the next one
//	  the requests that ended before it
//	a report at once after another one       it was held up on its way, and counts with the next one
//	a report without, 256 promised tokens    the promises were missed, and a new short window begins
//	  of requests that it includes
//
// Any request that found something hides the miss, so this is a sign of idle engines. The long windows find the rest.
//
// Promises are made, and cache states are rebuilt, by the callers. The time is an argument.
package drift
