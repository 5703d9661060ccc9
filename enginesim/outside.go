package enginesim

// Outside is a cache outside engines, such as LMCache's: engines load the beginning of a prompt from it, and store prompts there.
type Outside interface {
	// Held returns how many tokens at the beginning of a prompt the cache has.
	Held(prompt []uint32) int
	// Store stores a prompt as far as the cache does not have it.
	Store(prompt []uint32)
}

// loadOutside loads the beginning of the first prompt of a request as far as the engine does not have it. Caches outside engines know
// neither salts nor adapters.
func (s *Sim) loadOutside(c *completion) {
	r := c.requests[0]
	if s.cfg.Outside == nil || r.WholePrompt || r.Salt != "" || r.LoRA != "" || c.leg != (noLeg{}) {
		return
	}
	cached, size := s.cachedBlocks(s.promptHashes(c)), s.cfg.Engine.BlockSize
	held := min(s.cfg.Outside.Held(r.Prompt)/size, (len(r.Prompt)-1)/size)
	if held <= cached {
		return
	}

	// The core gives these blocks to the request when it admits it, and computes the rest.
	r.Delivered = held * size
	c.fetched = r.Delivered
	s.metrics.fetched((held - cached) * size)
}

// storeOutside stores the first prompt of a request that is answered.
func (s *Sim) storeOutside(c *completion) {
	r := c.requests[0]
	if s.cfg.Outside != nil && r.Salt == "" && r.LoRA == "" && c.allDone() {
		s.cfg.Outside.Store(r.Prompt)
	}
}
