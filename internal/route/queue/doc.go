// Package queue says which waiting request goes next when every rank that may take it is busy.
//
// A [Queue] is told who came, who left and which lanes can go now, and answers with one request
// at a time. It does not wait, does not choose ranks, and starts nothing: package route asks
// [Queue.Next] when a rank may have become free, decides, and says so with [Queue.Take].
//
// # Who goes next
//
// Requests stand in classes. Classes share what there is by deficit round robin: a class may
// spend its quantum, in prompt tokens that must be computed, at each turn, and what it could
// not spend is kept. Within a class the higher strict priority goes first; then, where the
// class is fair, the tenant that has been served least; then the class's order: FCFS (first come,
// first served, with a head start that a priority may give) or WSPT (the shortest first, weighed
// by priority).
//
// # Nobody stands in the way
//
// Within a class every set of ranks has a lane of its own: a request that only one busy worker
// may take never blocks those behind it that can go elsewhere. Within a lane all can go to the
// same ranks, so its head is the only one that needs to be asked about.
//
// # Concurrency and memory
//
// A Queue is not safe for concurrent use; its owner has a lock. It keeps nothing of a request that
// has gone or left. [Config.Limit] and the limits of classes bound it: the request that crosses
// a limit is still taken, the next one is not.
package queue
