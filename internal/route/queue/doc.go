// Package queue orders the requests that wait because every rank that may take them is busy.
//
// A [Queue] is a data structure: it does not wait, does not choose ranks, and starts no goroutine. Package
// route adds requests with [Queue.Push]. When a rank may have become free it calls [Queue.Next], decides,
// and confirms the decision with [Queue.Take].
//
// # Order
//
// Requests wait in classes. Classes share the ranks by deficit round robin: at each turn a class may spend
// its quantum, in prompt tokens to compute, and keeps the rest. Within a class the higher
// strict priority goes first. Then, in a fair class, comes the tenant that has been served least. Then
// comes the class's order: FCFS (first come, first served, with a head start by priority), LCFS (the last
// first) or WSPT (the shortest first, weighed by priority).
//
// # Lanes
//
// Within a class each set of ranks has its own lane. So a request that only one busy worker may take does
// not block requests behind it that can go elsewhere. All requests of a lane may go to the same ranks, so
// only its head needs to be checked.
//
// # Concurrency and memory
//
// A Queue is not safe for concurrent use; its owner has a lock. It keeps nothing of a request that is out
// of it. [Config.Limit] and the limits of classes bound it: the request that reaches a limit is accepted,
// and the next one is refused.
package queue
