// Package handoff changes the bodies of requests for engines that transfer KV caches between each other. It is pure: bodies in,
// bodies out. It splices bytes: members that it does not change keep their bytes and order, because a decoder would change large
// numbers.
//
// [Strip] removes the members that name the place from which an engine fetches a cache, also where vLLM takes them from
// "vllm_xargs" and "extra_args", and refuses a body that an engine could read otherwise than it does. Only a router may set them.
// A vLLM that can transfer caches and receives {"kv_transfer_params": {"do_remote_prefill": true}} without block ids ends its process,
// and an address in these members makes an engine connect to it.
//
// [Transfer] makes the two requests of a prompt that one worker computes and another one decodes:
//
//	kind       engine                       requests         the prefill request has          the decode request has
//	---------  ---------------------------  ---------------  -------------------------------  ------------------------------------
//	nixl       vLLM, NixlConnector          one, then the    do_remote_decode, one token      the kv_transfer_params of the answer
//	                                          other
//	context    TensorRT-LLM                 one, then the    disaggregated_params             the answer's, and the
//	                                          other            of type context_only             prompt's token ids
//	p2p        vLLM, OffloadingConnector    at once          an id, one token                 the id, and the prefill worker's
//	             with a p2p tier                                                                 address
//	bootstrap  SGLang                       at once          an id, and the prefill           the same
//	                                                           worker's address
//
// [Pull] makes the request of a prompt whose beginning the worker fetches from another worker's cache.
package handoff
