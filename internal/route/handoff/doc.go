// Package handoff changes the bodies of requests for engines that transfer KV caches between each other. It is pure: bodies in,
// bodies out. It splices bytes: what it does not change keeps its bytes and its order, because a decoder would change large
// numbers.
//
// [Strip] removes the members that name where an engine fetches a cache. Only a router may set them. A vLLM that can transfer
// caches and receives {"kv_transfer_params": {"do_remote_prefill": true}} without block ids ends its process, and an address in
// these members makes an engine connect to it.
//
// [Prefill] and [Decode] are the two requests of a prompt that one vLLM computes and another one decodes.
package handoff
