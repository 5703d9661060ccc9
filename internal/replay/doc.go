// Package replay compares the results of simulations: as a table of text, and as a page of HTML with plots.
//
// A [Run] is a named result with the settings that led to it. [Table] and [Page] put runs side by side and
// show by how much each differs from the first. The page is one file: it loads nothing and runs no
// scripts. Names and settings are untrusted text and are escaped.
//
// The package does no I/O. Its functions are safe for concurrent use.
package replay
