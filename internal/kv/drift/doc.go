// Package drift compares the cached tokens that routing decisions promised with those that engines
// report to have found, and reports workers whose cache state must be rebuilt.
//
// It does not know how promises are made or how a cache state is rebuilt, and it takes the time as
// an argument.
package drift
