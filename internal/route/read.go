package route

import (
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
)

// anyModel serves requests that name no model on a path we do not read.
var anyModel = &model{
	ModelConfig: ModelConfig{BlockSize: 16},
	all:         choice{Choice{Policy: pick.LeastLoaded, Cost: cost.Default()}, must(pick.New(pick.LeastLoaded, 0))},
}

func must(p pick.Policy, err error) pick.Policy {
	if err != nil {
		panic(err) // a name in this file
	}
	return p
}

// read parses the request as far as it can be and finds its model and policy.
func (r *Router) read(s *scratch, d *Decision, req *Request) (*model, *prompt.Error) {
	s.parsed, s.asks = nil, asks{rank: -1, role: req.Role}
	s.prompt.Reset()
	d.Model = req.Model
	if req.Known {
		parsed, err := r.parse(req)
		if err != nil {
			return nil, err
		}
		s.parsed, s.salt = parsed, parsed.CacheSalt
		d.Model, d.Stream, d.IncludeUsage, d.MaxTokens = parsed.Model, parsed.Stream, parsed.IncludeUsage, parsed.MaxTokens
	}
	s.hear(req)
	m := (*r.models.Load())[d.Model]
	if m == nil && d.Model == "" && !req.Known {
		m = anyModel
	}
	if m == nil {
		d.Model, d.Reason = clip(d.Model), ModelNotFound
		return nil, &prompt.Error{Status: 404, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
			Message: fmt.Sprintf("The model `%s` does not exist.", d.Model)}
	}
	if m != anyModel {
		d.Model = m.name // not the request's string, which may pin its body
	}
	c := m.choice(req.Role)
	d.BlockSize, d.Policy, s.policy = m.BlockSize, c.Policy, c.policy
	s.how = pick.Asked{Session: d.Session, Temperature: s.asks.temperature.Value, HasTemperature: s.asks.temperature.Set}
	if !req.Known || parsedByLoad(m, req) {
		d.Policy, s.policy, s.parsed = pick.LeastLoaded, anyModel.all.policy, nil
	}
	return m, nil
}

// parsedByLoad says whether a request we can read is still routed by load alone: embeddings
// leave nothing in a cache that the next could use.
func parsedByLoad(m *model, req *Request) bool {
	return m.Prompt == nil || req.Endpoint == prompt.Embeddings
}

func (r *Router) parse(req *Request) (*prompt.Request, *prompt.Error) {
	if req.Parsed != nil {
		return req.Parsed, nil
	}
	if r.cfg.Parse == nil {
		return nil, &prompt.Error{Status: 500, Type: "server_error", Message: "The router was given no parser for request bodies."}
	}
	parsed, err := r.cfg.Parse(req.Endpoint, req.Body)
	return parsed, shaped(err)
}

// prepare renders and tokenizes. Without a parsed request the prompt is empty.
func (s *scratch) prepare(m *model, d *Decision) *prompt.Error {
	if s.parsed == nil {
		return nil
	}
	s.prompt.Now = d.At // some templates tell the date
	if err := shaped(m.Prompt.Prepare(s.parsed, &s.prompt)); err != nil {
		return err
	}
	d.PromptTokens = max(s.prompt.Total, len(s.prompt.Tokens))
	return nil
}

// shaped gives any error the shape clients understand.
func shaped(err error) *prompt.Error {
	if err == nil {
		return nil
	}
	var e *prompt.Error
	if errors.As(err, &e) {
		return e
	}
	return &prompt.Error{Status: 500, Type: "server_error", Message: err.Error()}
}

// clip bounds a name that a client sent.
func clip(name string) string {
	if len(name) > 128 {
		return name[:128] + "…"
	}
	return string([]byte(name)) // a copy: the original may alias the body
}
