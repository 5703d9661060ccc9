package messages

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec of generated messages
	"google.golang.org/grpc/mem"
)

// Codec returns a codec for grpc.ForceServerCodecV2. It handles the messages of this package, and passes
// all others to gRPC's codec for protobuf.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ generated encoding.CodecV2 }

// Name returns the name of the protobuf codec: the bytes are the same.
func (c codec) Name() string { return c.generated.Name() }

// Marshal encodes a *Response, or any generated message.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*Response)
	if !ok {
		return c.generated.Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(r.Append(make([]byte, 0, 256+len(r.NewBody))))}, nil
}

// Unmarshal decodes a *Request, a *Log, or any generated message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *Request:
		return m.receive(data)
	case interface{ Read(message []byte) error }:
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return m.Read(buf.ReadOnlyData())
	}
	return c.generated.Unmarshal(data, v)
}
