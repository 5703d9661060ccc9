// Package conformance runs the conformance suite of the Gateway API inference extension with Stator's router as the endpoint picker, and a
// table of what clients see when a picker fails. `make test-conformance` builds all that it needs from Go modules and runs it.
//
// Everything but the engines is real: a control plane and a node of Kubernetes (kubelet, containerd, runc), istiod, an Envoy for each
// Gateway, and the program of `make build` in the place of the suite's picker. They run in namespaces of their own, which needs root and
// `unshare`, and all of them end with the test. The machine must be no node of a cluster. The engines are package engine, because the
// suite's own server lists no model.
//
// The suite selects a pod with the header test-epp-endpoint-selection, and wants the address of the pod that served back in another.
// The router has no such hooks. Two filters of the test's Gateways translate: Envoy turns the header into the subset hint of the picker's
// protocol, and writes the answer's header from the metadata that it also sends to the picker.
//
// The suite has a fourteenth test, GatewayWeightedAcrossTwoInferencePools, which is left out: istiod asks one picker for both pools of
// a rule (istio issue 61594). Its test EppUnAvailableFailOpen takes away the picker of a pool that it sends nothing to, so the table of
// this package takes its place as evidence.
package conformance
