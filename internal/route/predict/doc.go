// Package predict makes the index of caches expect a prompt's blocks on the rank that was picked, until its engine's events report
// them, and takes that back for a request that went elsewhere.
package predict
