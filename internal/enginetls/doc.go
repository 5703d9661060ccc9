// Package enginetls makes connections to engines, with TLS if the configuration has certificates for it.
//
// A [Client] belongs to a process and is for all engines: a process asks an engine of Kubernetes for its model before it knows the model.
// Engines have IPs that change, so their certificates are for one DNS name, whatever their addresses. The files are read again when they
// change. Connections that are open then stay open. Engines without TLS in a fleet with TLS are exceptions by their addresses, which are in
// the configuration: no lease and no pod can have an engine reached without TLS.
//
// An [Error] has what to change. Before a connection is ready, an error is a [net.OpError] with the operation "dial". So callers know that
// the engine has received no request.
//
// # Concurrency
//
// A Client is safe for concurrent use.
package enginetls
