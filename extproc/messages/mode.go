package messages

import filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

// Mode is the request_body_mode or response_body_mode of Envoy's filter: how it sends bodies.
type Mode uint8

// The modes.
const (
	Unknown         Mode = iota // Envoy does not tell, or has a mode that is not known here
	None                        // no body
	Streamed                    // pieces, while Envoy forwards the headers
	Buffered                    // the whole body
	BufferedPartial             // the first piece, as large as Envoy's buffer, while Envoy keeps the headers
	FullDuplex                  // pieces, while Envoy keeps the headers and forgets the pieces
)

// modeOf returns the mode of a number of ProcessingMode.BodySendMode.
func modeOf(number int32) Mode {
	switch filterv3.ProcessingMode_BodySendMode(number) {
	case filterv3.ProcessingMode_NONE:
		return None
	case filterv3.ProcessingMode_STREAMED:
		return Streamed
	case filterv3.ProcessingMode_BUFFERED:
		return Buffered
	case filterv3.ProcessingMode_BUFFERED_PARTIAL:
		return BufferedPartial
	case filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		return FullDuplex
	}
	return Unknown
}

// number returns the number of ProcessingMode.BodySendMode.
func (m Mode) number() uint64 {
	return uint64(filterv3.ProcessingMode_BodySendMode_value[m.String()])
}

// String returns the name in Envoy's configuration.
func (m Mode) String() string {
	return [...]string{"unknown", "NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"}[m]
}
