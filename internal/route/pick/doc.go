// Package pick chooses one rank from scored candidates and books the request there in the
// same step.
//
// A [Policy] chooses; [Bookings] holds each request's load until the request ends. A booking
// starts with the pick, is part of the rank's load for every later pick, and ends exactly
// once, with a reason. The package does not score (package cost does), does not know
// prompts, and reads neither clock nor global randomness.
//
// # Concurrency
//
// Everything here is safe for concurrent use; a *rand.Rand that is passed in belongs to the
// caller for the length of the call. A booking is made only if the chosen rank's load is
// still the load on which the choice was based, so two decisions made at once see each other: see
// [Bookings.Start].
package pick
