// Package fleet holds the workers and the load of each of their ranks.
//
// Membership is an immutable [Snapshot] behind one atomic pointer; load is one record
// of atomics per rank ([Load]), shared by all snapshots that contain the rank. The
// package does not find workers (discovery does), does not judge them (route does) and
// does not read the clock.
//
// # Identity
//
// A worker is named by its operator, never by its address. A worker's epoch changes
// whenever its engine process starts; a new epoch gives every rank of it a new
// [RankID] and a new, empty [Load], so nothing that was measured of the old process is
// taken for the new one.
//
// # Concurrency
//
// Writers are serialised by a mutex. Readers take no lock: they load the snapshot once
// and use it for as long as they like.
package fleet
