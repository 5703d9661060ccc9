package enginesim

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

// refusal returns an error as vLLM writes it.
func (s *Sim) refusal(err error) *openai.Error {
	var api *openai.Error
	var long *engine.TooLongError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &long):
		return openai.Invalid("input_tokens", "",
			"This model's maximum context length is %d tokens. However, your request has %d input tokens. "+
				"Please reduce the length of the input messages.",
			long.Limit, long.Tokens)
	case errors.As(err, &large):
		return &openai.Error{Status: http.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("The request body is larger than %d bytes: send less.", large.Limit)}
	case errors.Is(err, engine.ErrQueueFull):
		return &openai.Error{Status: http.StatusServiceUnavailable,
			Message: "The engine's queue is full: try again later, or send less at once."}
	}

	// The remaining errors are of the core, about an empty prompt.
	return openai.Invalid("", "", "%v", err)
}

// errorTypes are the types of vLLM's errors by HTTP status.
var errorTypes = map[int]string{
	http.StatusBadRequest:            "BadRequestError",
	http.StatusNotFound:              "NotFoundError",
	http.StatusRequestEntityTooLarge: "BadRequestError",
	http.StatusServiceUnavailable:    "ServiceUnavailableError",
}

// writeError writes an error as the engine does that the transfers are of. The code of vLLM's errors is the status as a number.
func (s *Sim) writeError(w http.ResponseWriter, e *openai.Error) {
	switch s.cfg.KVTransferKind {
	case fleet.TransferBootstrap:
		writeFlatError(w, e, cmp.Or(sglangTypes[e.Status], strconv.Itoa(e.Status)))
		return
	case fleet.TransferContext:
		writeFlatError(w, e, cmp.Or(errorTypes[e.Status], "InternalServerError"))
		return
	}
	b := openai.AppendString([]byte(`{"error":{"message":`), e.Message)
	b = openai.AppendString(append(b, `,"type":`...), cmp.Or(errorTypes[e.Status], "InternalServerError"))
	b = append(b, `,"param":`...)
	if e.Param == "" {
		b = append(b, "null"...)
	} else {
		b = openai.AppendString(b, e.Param)
	}

	b = appendNumber(b, `,"code":`, e.Status)
	writeJSON(w, e.Status, append(b, "}}"...))
}

// writeAnthropicError writes an error as vLLM does on /v1/messages.
func writeAnthropicError(w http.ResponseWriter, e *openai.Error) {
	b := openai.AppendString([]byte(`{"type":"error","error":{"type":`), cmp.Or(errorTypes[e.Status], "InternalServerError"))
	b = openai.AppendString(append(b, `,"message":`...), e.Message)
	writeJSON(w, e.Status, append(b, "}}"...))
}

// sglangTypes are the types of SGLang's errors. For other statuses the type is the status as text.
var sglangTypes = map[int]string{http.StatusBadRequest: "BadRequest"}

// writeFlatError writes an error as SGLang and TensorRT-LLM do: without a member "error" around it.
func writeFlatError(w http.ResponseWriter, e *openai.Error, kind string) {
	b := openai.AppendString([]byte(`{"object":"error","message":`), e.Message)
	b = openai.AppendString(append(b, `,"type":`...), kind)
	b = appendNumber(b, `,"param":null,"code":`, e.Status)
	writeJSON(w, e.Status, append(b, '}'))
}
