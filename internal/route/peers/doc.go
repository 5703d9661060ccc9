// Package peers shares the bookings of one router replica with the others, so that every replica
// sees the load that all of them have placed.
//
// A [Publisher] makes the updates of one replica from its fleet; a [Receiver] adds the updates of the
// other replicas to the loads of its own fleet. The package does not know how updates travel, and it
// takes the time as an argument.
package peers
