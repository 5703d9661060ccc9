package stream

import (
	"strings"

	"github.com/stator-project/stator/internal/prompt"
)

// target is what a path asks for.
type target struct {
	// known says that we read the body of such requests, as endpoint.
	known    bool
	endpoint prompt.Endpoint
	// local answers without any engine.
	local func(*Server, head) *answer
}

var targets = map[string]target{
	"/v1/chat/completions": {known: true, endpoint: prompt.Chat},
	"/v1/completions":      {known: true, endpoint: prompt.Completions},
	"/v1/embeddings":       {known: true, endpoint: prompt.Embeddings},
	"/v1/models":           {local: (*Server).listModels},
	"/health":              {local: (*Server).health},
	"/live":                {local: (*Server).live},
	"/openapi.json":        {local: (*Server).openAPI},
}

// classify finds the target of a path; its query and a slash at its end do not matter.
func classify(path string) target {
	path, _, _ = strings.Cut(path, "?")
	if t, ok := targets[path]; ok {
		return t
	}
	if t, ok := targets[strings.TrimSuffix(path, "/")]; ok {
		return t
	}
	if strings.HasPrefix(path, "/v1/models/") {
		return target{local: (*Server).oneModel}
	}
	return target{}
}
