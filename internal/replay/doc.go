// Package replay describes runs of the simulation and compares their results: as a table of text, and as a page
// of HTML with plots.
//
// [Options] are the flags of one run, without the flags of its trace. They become a simulation, and the
// settings that the comparison shows.
//
// A [Run] is a named result with the settings that led to it. [Table] and [Page] put runs side by side and
// show by how much each differs from the first. The page is one file: it loads nothing and runs no
// scripts. Names and settings are untrusted text and are escaped.
//
// The package does no I/O: its caller opens the folders of profiles. Its functions are safe for concurrent use.
package replay
