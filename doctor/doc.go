// Package doctor looks at a running fleet and reports problems, why they matter and what to do.
//
// It works in three steps. Asking does all the I/O: it reads the admin ports of the router and of agents, and of every worker
// the HTTP server and the event sockets, once. Each check then looks at these answers alone, without I/O,
// and returns findings. At last the findings are printed, as text or as JSON.
//
// The doctor changes nothing and sends no prompts. It asks engines to tokenize a few short texts, and
// subscribes to their event sockets for a moment.
//
// A check reports nothing if an earlier finding explains its result. An engine that does not answer is
// one finding, not one for each of its properties.
//
// # An Envoy that others configured
//
// The configuration of an Envoy is read as plain JSON, not as the types of go-control-plane: these refuse a whole document
// because of one type or value that they do not know, and a dump has many. A value that is absent, or has an unexpected type,
// counts as not set. A dump is input of strangers: its size and the number of its values are bounded, and findings are printed
// without control characters.
//
// The checks of the Envoy depend on two choices, both in [envoySeen.choose]: which filter asks routers, and which clusters
// have workers.
package doctor
