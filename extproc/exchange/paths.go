package exchange

import (
	"net/http"
	"strings"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/handoff"
)

// target is the handling of a path.
type target struct {
	// known means that the bodies of such requests are parsed, as bodies of endpoint.
	known    bool
	endpoint prompt.Endpoint
	// passed means that requests reach a worker although their bodies are not parsed.
	passed bool
	// splits means that a prefill worker can compute the prompt of such a request. shape is then the shape of its body.
	splits bool
	shape  handoff.Endpoint
	path   string
	// local makes the answer, without an engine; nil for requests to workers.
	local func(*Service, Head) *Answer
}

// targets are the known paths, apart from the pages of single models.
var targets = map[string]target{
	"/v1/chat/completions": {known: true, endpoint: prompt.Chat},
	"/v1/completions":      {known: true, endpoint: prompt.Completions},
	"/v1/embeddings":       {known: true, endpoint: prompt.Embeddings},
	"/v1/messages":         {known: true, endpoint: prompt.Messages},
	"/v1/responses":        {known: true, endpoint: prompt.Responses},
	"/v1/models":           {local: (*Service).listModels},
	"/health":              {local: (*Service).health},
	"/live":                {local: (*Service).live},
	"/openapi.json":        {local: (*Service).openAPI},
}

// classify returns the target of a request. The query of its path, and a slash at the end, are ignored. Engines
// answer the OPTIONS by which browsers ask for permission, so these pass to a worker.
func (s *Settings) classify(method, path string) target {
	path, _, _ = strings.Cut(path, "?")
	t, ok := targets[path]
	if !ok {
		t, ok = targets[strings.TrimSuffix(path, "/")]
	}

	plain := strings.TrimSuffix(path, "/")
	t.shape, t.splits = shapes[plain]
	t.path = plain
	switch {
	case ok && t.known && method == http.MethodOptions:
		return target{passed: true}
	case ok:
		return t
	case strings.HasPrefix(path, "/v1/models/"):
		return target{local: (*Service).oneModel}
	}
	t.passed = s.passes(path)
	t.splits = t.splits && t.passed && method == http.MethodPost
	return t
}

// model returns the model of a request whose body is not parsed otherwise. A body that is JSON may name one. A name
// that nothing serves counts if there are several pools: the request must not reach another model's workers. Otherwise
// it is the engine's to judge.
func (x *Exchange) model() string {
	set := x.svc.Settings()
	if e := x.envelope; e != nil && e.Model != "" && (set.SeveralPools || x.svc.router.Serves(e.Model)) {
		return e.Model
	}
	return set.DefaultModel
}

// passes reports whether requests on an unparsed path reach workers.
func (s *Settings) passes(path string) bool {
	for _, p := range s.PassPaths {
		prefix, below := strings.CutSuffix(p, "*")
		switch {
		case p == "/*":
			return true
		case path == p || strings.TrimSuffix(path, "/") == p:
			return true
		case below && strings.HasPrefix(path, prefix) && isPlain(path):
			return true
		}
	}
	return false
}

// isPlain reports whether a path means the same to every server: it has no escapes and no dot segments, which
// could lead out of the prefix that it begins with.
func isPlain(path string) bool {
	return !strings.Contains(path, "%") && !strings.Contains(path, "/.") && !strings.Contains(path, "\\")
}
