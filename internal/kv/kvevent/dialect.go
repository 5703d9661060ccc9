package kvevent

import "fmt"

// Dialect is the format of an engine's events.
type Dialect uint8

// The dialects. VLLM is the default. Package engines has the dialect of each kind of engine.
const (
	VLLM Dialect = iota
	SGLang
	TRTLLM
	Dynamo
	Outside // caches outside engines
	dialects
)

var dialectNames = [dialects]string{"vllm", "sglang", "trtllm", "dynamo", "outside"}

func (d Dialect) String() string {
	if d < dialects {
		return dialectNames[d]
	}
	return "unknown"
}

// Decode reads one message of the dialect into b. On an error the batch is empty.
func (d Dialect) Decode(payload []byte, lim Limits, b *Batch) error {
	switch d {
	case VLLM:
		return DecodeVLLM(payload, lim, b)
	case SGLang:
		return DecodeSGLang(payload, lim, b)
	case TRTLLM:
		return DecodeTRTLLM(payload, lim, b)
	case Dynamo:
		return DecodeDynamo(payload, lim, b)
	case Outside:
		return DecodeOutside(payload, lim, b)
	}
	b.Reset()
	return fmt.Errorf("decode events: dialect %d does not exist", d)
}
