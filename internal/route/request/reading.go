package request

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/serving"
)

// Reading is the content of a prompt as it was read for the decision about its decode worker. The decision about its prefill worker uses
// it, so that the prompt is parsed, rendered and tokenized once. The zero value is empty. It refers to nothing of the request's body.
type Reading struct {
	Model  *serving.Model // a reload of the configuration makes others
	Tokens int
	batch  Batch
	blocks Kept
	// endpoint is the API of the request.
	endpoint prompt.Endpoint

	stream, includeUsage bool
	maxTokens            int
}

// Keep fills the reading of a request whose decision is split. A prompt without a complete block is not kept: reading it again
// takes less time.
func (req *Request) Keep(q *Prepared, d *decision.Decision) {
	if req.Reading == nil || req.Role != fleet.Aggregated {
		return
	}
	*req.Reading = Reading{}
	if !d.Split || len(q.Blocks) == 0 {
		return
	}
	*req.Reading = Reading{
		Model: q.Model, Tokens: q.Tokens, batch: q.Batch, blocks: q.KeepBlocks(), endpoint: q.Endpoint,
		stream: d.Stream, includeUsage: d.IncludeUsage, maxTokens: d.MaxTokens,
	}
}

// Reuse fills q and d from a reading, without the body.
func (q *Prepared) Reuse(req *Request, k *Reading, d *decision.Decision) *decision.Refusal {
	q.Reset()
	q.Model = k.Model
	q.Batch = k.batch
	q.Tokens = k.Tokens
	q.Endpoint = k.endpoint
	q.UseBlocks(&k.blocks)
	q.Hints = ReadHints(req, nil)
	c := q.Model.Choice(q.Role)
	q.PolicyName, q.Policy = c.Policy, c.Picker
	q.PolicyInput = q.Hints.PolicyInput(d.Session)
	q.MayWait = q.Model.Queue != nil && req.Ready != nil

	d.Model, d.Pool = k.Model.Name, k.Model.Pool
	d.Role, d.Policy = q.Role, q.PolicyName
	d.PromptTokens, d.BlockSize = k.Tokens, k.Model.BlockSize
	d.Stream, d.IncludeUsage = k.stream, k.includeUsage
	d.MaxTokens = k.maxTokens
	q.OutputTokens = q.BoundOutput(q.OutputTokens, d.MaxTokens)
	return q.RefusalOf(req)
}
