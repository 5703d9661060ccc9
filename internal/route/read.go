package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// readPrompt parses the request, finds its model and policy, and renders and tokenizes its prompt. It writes its findings into d,
// even if it refuses the request.
func (r *Router) readPrompt(w *workspace, q *request.Prepared, req *request.Request, d *decision.Decision) *decision.Refusal {
	if refused := r.parse(w, q, req, d); refused != nil {
		return refused
	}
	if refused := r.findModel(q, req, d); refused != nil {
		return refused
	}
	r.findPolicy(q, req, d)

	w.prompt.Done = req.Done
	w.prompt.OnRendered = q.Steps.OnRendered()
	if err := q.Prepare(&w.prompt, d); err != nil {
		d.Policy = q.PolicyName
		return decision.RefuseError(err)
	}
	q.Steps.End(request.Tokenized)
	if why := w.prompt.Unread; req.NeedsSalt && (q.Model.Prompt == nil || why == openai.WhyEngine) {
		return decision.RefuseError(noSalt())
	}
	q.Stored = req.Known && req.Endpoint == prompt.Responses && req.Role != fleet.Prefill
	r.leaveUnread(q, req, w.prompt.Unread)
	d.BlockSize, d.Policy = q.Model.BlockSize, q.PolicyName
	q.OutputTokens = q.BoundOutput(q.OutputTokens, d.MaxTokens)
	q.ChoosesLegs = req.Role == fleet.Aggregated && q.Role == fleet.Decode
	q.Splits = q.ChoosesLegs && (q.IsSplittable() || req.Splits && q.Parsed == nil)
	q.Remote = q.Splits || req.Role == fleet.Decode
	d.Split = q.Splits
	d.Speculates = q.Speculates && q.Parsed != nil && q.Endpoint.IsChat() && q.Role == fleet.Aggregated
	return q.RefusalOf(req)
}

// parse parses the body, unless it comes parsed or its path is not known, and gives the prompt the salt of its tenant.
func (r *Router) parse(w *workspace, q *request.Prepared, req *request.Request, d *decision.Decision) *decision.Refusal {
	q.Reset()
	q.Dry = req.Dry
	q.Steps = req.Steps
	d.Model = req.Model
	if !req.Known {
		if req.SaltKey != nil {
			d.CacheSalt = request.TenantSalt(req.SaltKey, req.Tenant, "")
		}
		return nil
	}

	q.Endpoint = req.Endpoint
	parsed, err := req.Parse(&w.parsed)
	if err != nil {
		d.Model = decision.Clip(d.Model)
		return decision.RefuseError(err)
	}
	if req.SaltKey != nil {
		parsed.CacheSalt = request.TenantSalt(req.SaltKey, req.Tenant, parsed.CacheSalt)
		d.CacheSalt = parsed.CacheSalt
	}
	q.Steps.End(request.Parsed)
	q.Parsed = parsed
	d.Model, d.MaxTokens = parsed.Model, parsed.MaxTokens
	d.Stream, d.IncludeUsage = parsed.Stream, parsed.IncludeUsage
	return nil
}

// findModel finds the model that the request names. One that names none, on a path that is not known, may go to any worker.
func (r *Router) findModel(q *request.Prepared, req *request.Request, d *decision.Decision) *decision.Refusal {
	q.Model = r.model(d.Model)
	switch {
	case q.Model != nil:
		d.Pool = q.Model.Pool
		d.Alias = q.Model.Name != q.Model.Pool && q.Model.Adapter == ""
		d.Model = q.Model.Name // not the request's string, which may pin its body
		return nil
	case d.Model == "" && !req.Known:
		q.Model = serving.Any
		return nil
	}

	d.Model = decision.Clip(d.Model)
	if len(*r.models.Load()) == 0 { // none has been discovered yet
		return decision.Refuse(decision.ReasonNoReadyWorker, 0, 10*time.Second, d.Model, "none has been found yet")
	}
	return decision.Refuse(decision.ReasonModelNotFound, 0, 0, d.Model, "")
}

// findPolicy reads the hints, and finds the role and the policy by which the request is routed.
func (r *Router) findPolicy(q *request.Prepared, req *request.Request, d *decision.Decision) {
	q.Hints = request.ReadHints(req, q.Parsed)
	q.Batch = request.BatchOf(q.Parsed)
	if q.Role == fleet.Aggregated && r.hasDecode(q.Model) {
		q.Role = fleet.Decode
	}
	d.Role = q.Role
	c := q.Model.Choice(q.Role)
	q.PolicyName, q.Policy = c.Policy, c.Picker
	q.PolicyInput = q.Hints.PolicyInput(d.Session)
	q.Session = learned.SessionHash(r.cfg.Seed, d.Session)
	switch {
	case req.Known && req.Endpoint == prompt.Embeddings:
		q.RouteByLoad() // embeddings leave nothing in a cache that a later request could use
	case q.Model.Prompt == nil || !req.Known:
		q.RouteUnread()
	}
	if q.Model.Store && q.Role == fleet.Aggregated {
		d.Pin = q.Hints.Pin // the KV connectors of prefill and decode workers read other parameters
	}
	q.MayWait = q.Model.Queue != nil && req.Ready != nil && !r.cfg.Shadow
}

// noSalt returns the refusal of a request whose engine may put its prompt into a cache that all tenants share.
func noSalt() *openai.Error {
	err := openai.Invalid("", "unknown_url", "The gateway keeps tenants apart, and the model's engines are not known to do so on this "+
		"path. Use /v1/chat/completions; the operator can let the path pass with gateway.passPaths.")
	err.Status = 404
	return err
}

// leaveUnread routes a request without its prompt, for that reason, and counts it once. One that continues a stored answer goes where the
// latest request of its session went.
func (r *Router) leaveUnread(q *request.Prepared, req *request.Request, why openai.Why) {
	if !req.Known && len(req.Body) > 0 {
		why = openai.WhyPath
	}
	if why == openai.WhyRead {
		return
	}
	if req.Role != fleet.Prefill && !req.Dry {
		r.counts.unread[why].Add(1)
	}
	q.RouteUnread()
	if why == openai.WhyPrevious {
		q.PolicyName, q.Policy = pick.Session, pick.Stay(r.places.Of(q.Session))
	}
}

// kept returns the reading that a decision about a prefill worker can use; nil for none. Another block size, template or
// tokenizer since then needs another reading, and so do hints in the body.
func (r *Router) kept(req *request.Request) *request.Reading {
	k := req.Reading
	if k == nil || k.Model == nil || req.Role != fleet.Prefill || !req.IgnoreBodyHints || r.model(k.Model.Name) != k.Model {
		return nil
	}
	return k
}
