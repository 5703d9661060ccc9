package engines

import "github.com/stator-project/stator/internal/fleet"

// Sim is the simulated engine, which is part of this program and has the interfaces of vLLM.
var Sim = &Kind{
	Name:    "sim",
	Dialect: VLLMEvents, Pages: OpenAIPages, Metrics: vllmMetrics, AdapterPath: vllmAdapterPath, VLLMRules: true,
	Transfer: fleet.TransferNixl, OwnHashes: true, TokenIDs: true, RankIgnored: vllmRankIgnored,
	Plan:     Plan{BlockSize: 16, Seqs: "maxNumSeqs", Batched: "maxNumBatchedTokens", Blocks: "blocks"},
	Launch:   Launch{Shape: Simulated},
	Remedies: vllmRemedies,
}
