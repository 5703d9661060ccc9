package xds

import (
	aiv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ai_protocol_manager/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

// maxEventBytes bounds the memory that the filter keeps of a stream or of another answer, whose bytes pass at once all the same. A usage
// beyond it is not read. Streams of /v1/responses end with an event that repeats the whole answer.
const maxEventBytes = 1 << 20

// buildUsage builds the filter that reads the usage in answers: streams of server-sent events and JSON, in the shapes of OpenAI and
// Anthropic, which it recognizes. It neither changes nor delays a byte. The usage is in the access log of routers as typed metadata.
//
// The alternatives have been measured: see docs/adr/0024-limits-in-the-router.md.
func buildUsage(p *packer) *hcmv3.HttpFilter {
	f := filter("envoy.filters.http.ai_protocol_manager", p.pack(&aiv3.AiProtocolManager{
		ResponseHandling: &aiv3.ResponseHandling{TokenUsage: &aiv3.TokenUsageExtraction{
			IncludeUnconfiguredRoutes: true,
			MetadataNamespace:         envoynames.NamespaceUsage,
			Limits: &aiv3.TokenUsageExtractionLimits{
				MaxSseEventSize: wrapperspb.UInt32(maxEventBytes), MaxJsonBodySize: wrapperspb.UInt32(maxEventBytes),
			},
		}},
	}))
	f.IsOptional = true // for an Envoy that does not name its version
	return f
}
