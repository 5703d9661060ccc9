package kvevent

import "fmt"

// DecodeSGLang reads one message of SGLang's event socket into b: vLLM's shape, with events
// as maps or, from older engines, as arrays that end at lora_id or medium. It differs from
// [DecodeVLLM] in what may be concluded: SGLang names a block's salt and adapter with every
// event and on every tier, so blocks of slower tiers are known by content as well.
//
// Where prompts have media SGLang replaces their tokens before it hashes, and tells the
// replaced ones. With Eagle drafts a token is a pair, of which the first counts.
//
// On an error the batch is empty. In a steady state nothing is allocated.
func DecodeSGLang(payload []byte, lim Limits, b *Batch) error {
	b.Reset()
	d := vllmDecoder{b: b, lim: lim.withDefaults(), tiersTell: true}
	if err := d.message(payload); err != nil {
		b.Reset()
		return fmt.Errorf("decode sglang events: %w", err)
	}
	return nil
}
