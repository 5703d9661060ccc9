// Package answers counts the answers that clients received: by model and worker, and by model and tenant.
//
// A request is counted when its booking ends, with the facts of the booking and of Envoy's access-log entry. Its worker is the one that
// answered, or else the one that was picked. Refused requests have no booking, and are counted by model and reason.
//
// # The time of the first token
//
// The time to the first token of a stream is the time from the first byte of the request to the first byte of the answer's body, as Envoy
// measures it. Engines send the first piece of a stream with the first token, and the headers earlier. The time is known from Envoys of
// version 1.37 and later whose access log has the custom tag of the snippet, and from Envoys whose filter sends responses to the router.
// Answers that are no streams have no such time: their first byte comes with their last token.
//
// # Tokens of answers
//
// Envoys with the filter of package xds report the usage in an answer. A stream without usage is estimated from its bytes, by the density
// of the streams of its model: bytes for a token.
//
//	answer                                source     tokens
//	------------------------------------  ---------  ---------------------------------------------
//	with usage                            usage      those of the usage
//	a stream without, or that was cut     estimate   bytes / density of the model
//	another one without                   -          none: an embedding, a file, an answer above 1 MiB
//	an error                              -          none
//
// # Bounds
//
// The number of series does not grow with what clients send. There is one set of about 50 series for each worker of the fleet, of at most
// maxWorkers, and a set of about ten for each pair of a model and a tenant, of at most maxTenants. Later ones are counted together as
// "other". The series of a worker that has left the fleet are dropped. Tenants are those of Envoy's own authentication: a name in a
// request's body is no tenant here.
//
// # Lines
//
// [Lines] shows the same facts one by one, for a person at a terminal. It is no log: what comes too fast is counted only.
//
// # Concurrency
//
// All methods are safe for concurrent use.
package answers
