package route

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
)

// read parses the request, finds its model and policy, and renders and tokenizes its prompt. It writes its findings into d,
// even if it refuses the request.
func (r *Router) read(w *workspace, q *asked, req *Request, d *Decision) *refusal {
	q.reset()
	d.Model = req.Model
	if req.SaltKey != nil && !req.Known {
		d.CacheSalt = tenantSalt(req.SaltKey, req.Tenant, "")
	}
	if req.Known {
		parsed, err := req.parse(&w.parsed)
		if err != nil {
			d.Model = clip(d.Model)
			return refuseError(err)
		}
		if req.SaltKey != nil {
			parsed.CacheSalt = tenantSalt(req.SaltKey, req.Tenant, parsed.CacheSalt)
			d.CacheSalt = parsed.CacheSalt
		}
		q.parsed = parsed
		d.Model, d.MaxTokens = parsed.Model, parsed.MaxTokens
		d.Stream, d.IncludeUsage = parsed.Stream, parsed.IncludeUsage
	}

	q.model = r.model(d.Model, req.Known)
	if q.model == nil {
		d.Model = clip(d.Model)
		return refuse(ReasonModelNotFound, 0, 0, d.Model, "")
	}
	if q.model != anyModel {
		d.Pool = q.model.Pool
		d.Model = q.model.name // not the request's string, which may pin its body
	}

	q.hints = readHints(req, q.parsed)
	q.batch = batchOf(q.parsed)
	if q.role == fleet.Aggregated && len(r.fleet.Snapshot().Pool(q.model.Pool, fleet.Decode)) > 0 {
		q.role = fleet.Decode
	}
	d.Role = q.role
	c := q.model.choice(q.role)
	q.policyName, q.policy = c.Policy, c.picker
	q.policyInput = q.hints.policyInput(d.Session)
	q.session = sessionHash(d.Session)
	if q.model.Prompt == nil || !req.Known || req.Endpoint == prompt.Embeddings {
		q.routeByLoad() // embeddings leave nothing in a cache that a later request could use
	}
	q.mayWait = q.model.Queue != nil && req.Ready != nil

	w.prompt.Done = req.Done
	if err := q.prepare(&w.prompt, d); err != nil {
		d.Policy = q.policyName
		return refuseError(err)
	}
	if w.prompt.Unread {
		r.counts.unread.Add(1)
		q.routeByLoad()
	}
	d.BlockSize, d.Policy = q.model.BlockSize, q.policyName
	q.outputTokens = q.boundOutput(q.outputTokens, d.MaxTokens)
	q.choosesLegs = req.Role == fleet.Aggregated && q.role == fleet.Decode
	q.splits = q.choosesLegs && (q.isSplittable() || req.Splits && !req.Known)
	q.remote = q.splits || req.Role == fleet.Decode
	d.Split = q.splits
	return q.refusalOf(req)
}

// model returns the model of that name, or nil. A request that names none on a path that is not parsed
// may go to any worker.
func (r *Router) model(name string, known bool) *model {
	m := (*r.models.Load())[name]
	if m == nil && name == "" && !known {
		return anyModel
	}
	return m
}

// kept returns the reading that a decision about a prefill worker can use; nil for none. Another block size, template or
// tokenizer since then needs another reading, and so do hints in the body.
func (r *Router) kept(req *Request) *Reading {
	k := req.Reading
	if k == nil || k.model == nil || req.Role != fleet.Prefill || !req.IgnoreBodyHints || r.model(k.model.name, true) != k.model {
		return nil
	}
	return k
}
