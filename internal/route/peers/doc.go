// Package peers shares the bookings and the prompts of one router replica with the others, so that every
// replica sees the load that all of them have placed, and where the blocks of prompts will be.
//
// A [Publisher] makes the updates of one replica from its fleet and its [Outbox]. A [Receiver] adds the
// updates of the other replicas to the loads of the receiving replica's fleet, and hands on their prompts.
// Callers transport the updates, and pass the time.
//
// # Updates
//
// An update contains absolute amounts of the ranks whose amounts have changed, and a digest of all
// amounts. Every two seconds an update is full: it contains every amount that is not zero. Updates may
// be lost, repeated or late:
//
//	the receiver finds                   effect
//	-----------------------------------  -------------------------------------------------------
//	the next number                      amounts replaced
//	a higher number                      amounts replaced; the numbers between count as lost
//	a number that is not above the last  ignored: it is late or repeated
//	an amount or a prompt out of bounds  the update is refused and counted
//	a digest that its amounts contradict a mismatch is counted; the next full update corrects it
//	a full update                        amounts replaced; all ranks that it lacks are zero
//	no update for Silence                the replica and its amounts are dropped
//	a rank in another epoch              its amount is stored but added to no load; a prompt is ignored
//
// # Concurrency
//
// A Publisher belongs to one goroutine. A Receiver and an Outbox are safe for concurrent use.
package peers
