package enginesim

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// The paths that describe the engine. They are rarely read, so they use encoding/json with maps.

// answerWith writes v as JSON.
func (s *Sim) answerWith(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.writeError(w, &openai.Error{Status: http.StatusInternalServerError, Message: err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// models serves /v1/models: the model with its aliases, and adapters with the model as their parent.
func (s *Sim) models(w http.ResponseWriter, _ *http.Request) {
	model := func(name string, parent any) map[string]any {
		return map[string]any{"id": name, "object": "model", "created": time.Now().Unix(), "owned_by": "vllm",
			"root": cmp.Or(s.cfg.Root, s.cfg.ModelName), "parent": parent, "max_model_len": s.cfg.Engine.MaxModelLen}
	}
	data := []any{model(s.cfg.ModelName, nil)}
	for _, name := range s.cfg.Aliases {
		data = append(data, model(name, nil))
	}

	for _, name := range s.adapters.list() {
		data = append(data, model(name, s.cfg.ModelName))
	}
	s.answerWith(w, map[string]any{"object": "list", "data": data})
}

// version serves /version. The number is the version of the vLLM release whose API is simulated.
func (s *Sim) version(w http.ResponseWriter, _ *http.Request) {
	s.answerWith(w, map[string]any{"version": "0.32.0+stator.sim"})
}

// serverLoad serves /load: the requests that have a handler.
func (s *Sim) serverLoad(w http.ResponseWriter, _ *http.Request) {
	s.answerWith(w, map[string]any{"server_load": s.active.Load()})
}

// eventSources serves /kv_event_sources, by which agents and routers find the event sockets of each rank:
//
//	{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://127.0.0.1:5557",
//	       "replay_endpoint": "tcp://127.0.0.1:5558", "buffer_steps": 10000, "hwm": 10000, "topic": "", …}}
//
// Without events, "enable_kv_cache_events" is false and the other keys are missing.
func (s *Sim) eventSources(w http.ResponseWriter, _ *http.Request) {
	// All keys are keys of vLLM's --kv-events-config.
	source := map[string]any{"enable_kv_cache_events": s.pub != nil}
	if s.pub != nil {
		source["publisher"] = "zmq"
		source["endpoint"] = s.EventsEndpoint()
		source["replay_endpoint"] = nil
		if s.replay != nil {
			source["replay_endpoint"] = s.ReplayEndpoint()
		}
		source["buffer_steps"] = s.cfg.ReplayBuffer
		source["hwm"] = s.cfg.SubscriberQueue
		source["max_queue_size"] = s.cfg.SubscriberQueue
		source["topic"] = s.cfg.Topic
	}

	s.answerWith(w, map[string]any{strconv.Itoa(s.cfg.Rank): source})
}

// tokenize serves /tokenize for {"prompt": text} or {"messages": [...]}, with or without a model. The answer is
// {"count": 3, "max_model_len": 131072, "tokens": [1, 2, 3], "token_strs": null}.
//
// The doctor compares these tokens with the router's own.
func (s *Sim) tokenize(w http.ResponseWriter, r *http.Request) {
	body, err := s.readBody(w, r)
	if err != nil {
		s.writeError(w, s.refusal(err))
		return
	}

	req, err := s.parseTokenize(body)
	var p prompt.Prompt
	if err == nil {
		err = s.cfg.Model.Prepare(req, &p)
	}

	if err != nil {
		s.writeError(w, s.refusal(err))
		return
	}

	// An empty list, not null, as vLLM writes it.
	tokens := p.Tokens
	if tokens == nil {
		tokens = []uint32{}
	}

	s.answerWith(w, map[string]any{"count": len(tokens), "max_model_len": s.cfg.Engine.MaxModelLen, "tokens": tokens, "token_strs": nil})
}

// parseTokenize parses a request of /tokenize as a completion or a chat, with the engine's model if it names
// none.
func (s *Sim) parseTokenize(body []byte) (*openai.Request, error) {
	var fields map[string]json.RawMessage
	// vLLM accepts a request without a model here, and openai.Parse does not, so the name is added.
	if json.Unmarshal(body, &fields) == nil && fields["model"] == nil {
		if fields == nil {
			fields = map[string]json.RawMessage{}
		}
		fields["model"], _ = json.Marshal(s.cfg.ModelName)
		body, _ = json.Marshal(fields)
	}

	ep := openai.Completions
	if fields["messages"] != nil {
		ep = openai.Chat
	}
	return openai.Parse(ep, body, openai.Limits{})
}
