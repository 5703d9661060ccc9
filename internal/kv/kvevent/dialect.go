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

// Decode reads one message of the dialect into b. On an error the batch is empty. In a steady state nothing is allocated.
func (d Dialect) Decode(payload []byte, lim Limits, b *Batch) error {
	b.Reset()
	lim = lim.withDefaults()

	var what string
	var err error
	switch d {
	case VLLM:
		what, err = "vllm events", decodeVLLM(payload, lim, b)
	case SGLang:
		what, err = "sglang events", decodeSGLang(payload, lim, b)
	case TRTLLM:
		what, err = "tensorrt-llm events", decodeTRTLLM(payload, lim, b)
	case Dynamo:
		what, err = "dynamo events", decodeDynamo(payload, lim, b)
	case Outside:
		what, err = "events of a cache outside engines", decodeOutside(payload, lim, b)
	default:
		what, err = "events", fmt.Errorf("dialect %d does not exist", d)
	}
	if err != nil {
		b.Reset()
		return fmt.Errorf("decode %s: %w", what, err)
	}
	return nil
}
