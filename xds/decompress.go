package xds

import (
	"math"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	gzipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/decompressor/v3"
	limitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/body_size_limit/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	decompressorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/decompressor/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// maxInflateRatio is the most that gzip can expand a body. With a lower bound Envoy would pass on a body that ends at
// the bound as if it were complete. sizeLimit bounds the bodies.
const maxInflateRatio = 1032

// buildDecompressor builds the filter that decompresses the bodies of requests. Responses pass as they are. Clients that
// compress use gzip; filters for brotli and zstd would cost every request 20 µs.
func buildDecompressor(p *packer) *hcmv3.HttpFilter {
	library := p.pack(&gzipv3.Gzip{MaxInflateRatio: wrapperspb.UInt32(maxInflateRatio)})
	return filter("stator.decompressor.gzip", p.pack(&decompressorv3.Decompressor{
		DecompressorLibrary: &corev3.TypedExtensionConfig{Name: "gzip", TypedConfig: library},
		RequestDirectionConfig: &decompressorv3.Decompressor_RequestDirectionConfig{
			// Clients are not asked to compress.
			AdvertiseAcceptEncoding: wrapperspb.Bool(false),
			// Cache-Control: no-transform is a header for responses of origins. An engine needs a plain body.
			CommonConfig: &decompressorv3.Decompressor_CommonDirectionConfig{IgnoreNoTransformHeader: true},
		},
		ResponseDirectionConfig: &decompressorv3.Decompressor_ResponseDirectionConfig{
			CommonConfig: &decompressorv3.Decompressor_CommonDirectionConfig{Enabled: &corev3.RuntimeFeatureFlag{
				DefaultValue: wrapperspb.Bool(false), RuntimeKey: "stator.decompress_responses",
			}},
		},
	}))
}

// sizeLimit bounds bodies after decompression even if no router asks for the whole of them. Envoy before 1.40 keeps the body to
// measure it, which it does for routers in any case. In Envoy 1.36 this bound also limits the filter that asks routers: there the
// bound of the route comes too late, and the bound of the connection cannot be raised, because so much of a compressed body is
// decompressed at once.
func sizeLimit(s Settings, v Version, p *packer) *hcmv3.HttpFilter {
	if !v.hasSizeLimit() {
		limit := uint32(min(s.MaxBodyBytes, math.MaxUint32))
		return filter("envoy.filters.http.buffer", p.pack(&bufferv3.Buffer{MaxRequestBytes: wrapperspb.UInt32(limit)}))
	}

	limit := &limitv3.BodySizeLimit{MaxRequestBytes: wrapperspb.UInt64(uint64(s.MaxBodyBytes))}
	f := filter("envoy.filters.http.body_size_limit", p.pack(limit))
	f.IsOptional = true // for an Envoy that does not name its version
	return f
}
