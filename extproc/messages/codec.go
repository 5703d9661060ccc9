package messages

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // what is not ours is the generated code's
	"google.golang.org/grpc/mem"
)

// Codec is for grpc.ForceServerCodecV2: it takes the messages of this package, and hands all
// others to gRPC's own codec for protobuf.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ generated encoding.CodecV2 }

// Name is that of the generated messages: on the wire there is no difference.
func (c codec) Name() string { return c.generated.Name() }

// Marshal writes a *Response, or any generated message.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*Response)
	if !ok {
		return c.generated.Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(r.Append(make([]byte, 0, 256+len(r.NewBody))))}, nil
}

// Unmarshal reads a *Request, a *Log, or any generated message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(interface{ Read(message []byte) error })
	if !ok {
		return c.generated.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return r.Read(buf.ReadOnlyData())
}
