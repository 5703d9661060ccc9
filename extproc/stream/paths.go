package stream

import (
	"strings"

	"github.com/stator-project/stator/internal/prompt"
)

// target is the handling of a path.
type target struct {
	// known means that the bodies of such requests are parsed, as those of endpoint.
	known    bool
	endpoint prompt.Endpoint
	// local makes the answer, without an engine; nil for requests to workers.
	local func(*Server, head) *answer
}

// targets are the known paths. All others are unknown, except the pages of single models.
var targets = map[string]target{
	"/v1/chat/completions": {known: true, endpoint: prompt.Chat},
	"/v1/completions":      {known: true, endpoint: prompt.Completions},
	"/v1/embeddings":       {known: true, endpoint: prompt.Embeddings},
	"/v1/models":           {local: (*Server).listModels},
	"/health":              {local: (*Server).health},
	"/live":                {local: (*Server).live},
	"/openapi.json":        {local: (*Server).openAPI},
}

// classify returns the target of a path. Its query, and a slash at its end, are ignored.
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
