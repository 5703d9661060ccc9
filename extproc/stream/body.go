package stream

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// decompress returns the body without its content encoding, at most limit bytes, or the answer that refuses it.
// Without an encoding it returns the body itself.
func decompress(body []byte, encoding string, limit int64) ([]byte, *answer) {
	if int64(len(body)) > limit {
		return nil, tooLarge(limit)
	}
	if encoding == "" || identity(encoding) || len(body) == 0 {
		return body, nil
	}
	if !strings.EqualFold(strings.TrimSpace(encoding), "gzip") {
		return nil, refusal(&openai.Error{
			Status: http.StatusUnsupportedMediaType, Type: openai.InvalidRequest,
			Message: fmt.Sprintf("The content-encoding %q is not supported: send gzip, or the body uncompressed.", clip(encoding)),
		}, "content_encoding")
	}

	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, badGzip(err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, limit+1))
	if err != nil {
		return nil, badGzip(err)
	}
	if int64(len(plain)) > limit {
		return nil, tooLarge(limit)
	}
	return plain, nil
}

// identity reports whether an encoding means that the body is not encoded.
func identity(encoding string) bool {
	return strings.EqualFold(strings.TrimSpace(encoding), "identity")
}

// badGzip returns the refusal of a body that is not gzip.
func badGzip(err error) *answer {
	const text = "The body is not valid gzip, as its content-encoding states (%v). Compress it again, or send it uncompressed."
	return refusal(&openai.Error{
		Status: http.StatusBadRequest, Type: openai.InvalidRequest, Message: fmt.Sprintf(text, err),
	}, "content_encoding")
}

// tooLarge returns the refusal of a body above the limit.
func tooLarge(limit int64) *answer {
	return refusal(&openai.Error{Status: http.StatusRequestEntityTooLarge, Type: openai.InvalidRequest, Code: "request_too_large",
		Message: fmt.Sprintf("The request body is larger than the limit of %d bytes. Send a shorter one.", limit)}, "body_too_large")
}
