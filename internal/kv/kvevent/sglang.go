package kvevent

// decodeSGLang reads one message of SGLang's event socket into b: vLLM's shape, with events as
// maps or, from older engines, as arrays that end at lora_id or medium. Unlike vLLM, SGLang names a block's
// salt and adapter with every event and on every tier. So blocks on slower tiers are known by content too.
//
// In prompts with media SGLang replaces tokens before it hashes, and reports the replaced ones. With Eagle
// drafts a token is a pair, of which the first counts.
func decodeSGLang(payload []byte, lim Limits, b *Batch) error {
	d := vllmDecoder{b: b, lim: lim, slowTiersHaveKeys: true}
	return d.message(payload)
}
