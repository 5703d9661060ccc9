package exchange

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
)

// openAPIDocument describes the paths of the gateway.
//
//go:embed openapi.json
var openAPIDocument []byte

// modelObject is OpenAI's object of a model, with vLLM's parent and max_model_len.
type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Parent      string `json:"parent,omitempty"` // the base model of an adapter
	MaxModelLen int    `json:"max_model_len,omitempty"`
}

func (s *Service) object(m route.ModelStatus) modelObject {
	return modelObject{
		ID: m.Name, Object: "model", Created: s.started.Unix(), OwnedBy: "stator", Parent: m.Parent, MaxModelLen: m.ContextLength,
	}
}

// listModels answers GET /v1/models, as OpenAI does.
func (s *Service) listModels(h Head) *Answer {
	if a := getOnly(h); a != nil {
		return a
	}
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list", Data: []modelObject{}}
	for _, m := range s.router.Models() {
		list.Data = append(list.Data, s.object(m))
	}
	return answerJSON(http.StatusOK, list)
}

// oneModel answers GET /v1/models/NAME. A name may contain slashes, escaped or not.
func (s *Service) oneModel(h Head) *Answer {
	if a := getOnly(h); a != nil {
		return a
	}
	path, _, _ := strings.Cut(h.Path, "?")
	name := strings.TrimSuffix(strings.TrimPrefix(path, "/v1/models/"), "/")
	if plain, err := url.PathUnescape(name); err == nil {
		name = plain
	}
	for _, m := range s.router.Models() {
		if m.Name == name {
			return answerJSON(http.StatusOK, s.object(m))
		}
	}
	return refusal(&openai.Error{Status: http.StatusNotFound, Type: openai.InvalidRequest, Param: "model", Code: "model_not_found",
		Message: "The model `" + clip(name) + "` does not exist. GET /v1/models lists those that do."}, "model_not_found")
}

// health answers 200 if every model has a ready worker, else 503. The body has the number of workers of
// each model. Adapters are left out: one that an engine has unloaded makes no other request fail.
func (s *Service) health(h Head) *Answer {
	if a := getOnly(h); a != nil {
		return a
	}
	type pool struct {
		Workers int `json:"workers"`
		Ready   int `json:"ready"`
	}
	out := struct {
		Status string          `json:"status"`
		Models map[string]pool `json:"models"`
	}{Status: "ok", Models: map[string]pool{}}
	code := http.StatusOK
	for _, m := range s.router.Models() {
		if m.Adapter != "" {
			continue
		}
		out.Models[m.Name] = pool{m.Workers, m.Ready}
		if m.Ready == 0 {
			code = http.StatusServiceUnavailable
			out.Status = "a model has no ready worker"
		}
	}
	return answerJSON(code, out)
}

// live answers 200 as long as the process serves.
func (s *Service) live(h Head) *Answer {
	if a := getOnly(h); a != nil {
		return a
	}
	return answerJSON(http.StatusOK, map[string]string{"status": "ok"})
}

// openAPI answers with the document of the paths.
func (s *Service) openAPI(h Head) *Answer {
	if a := getOnly(h); a != nil {
		return a
	}
	return &Answer{Status: http.StatusOK, Body: openAPIDocument, Detail: "local"}
}

// getOnly returns the refusal of a method that is not GET or HEAD; nil for these.
func getOnly(h Head) *Answer {
	if h.Method == http.MethodGet || h.Method == http.MethodHead {
		return nil
	}
	a := refusal(&openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.InvalidRequest,
		Message: "This path accepts GET, not " + clip(h.Method) + "."}, "method")
	a.Allow = "GET, HEAD"
	return a
}

// answerJSON returns an answer with v as its body.
func answerJSON(status int, v any) *Answer {
	body, err := json.Marshal(v)
	if err != nil { // not with the values of this package
		return refusal(&openai.Error{Status: http.StatusInternalServerError, Type: openai.ServerError, Message: err.Error()}, "internal")
	}
	return &Answer{Status: status, Body: body, Detail: "local"}
}
