package xds

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

// buildAccessLogs returns the access log for routers, and the one for people.
func buildAccessLogs(s Settings, a audience, p *packer) []*accesslogv3.AccessLog {
	list := []*accesslogv3.AccessLog{buildAccessLog(a, p)}
	if s.AccessLog == "" || a.own {
		return list
	}

	format := &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: lineOf(s, a.version)}}
	l := &accesslogv3.AccessLog{Name: "envoy.access_loggers.file"}
	if s.AccessLog == StdoutLog {
		l.Name = "envoy.access_loggers.stdout"
		l.ConfigType = &accesslogv3.AccessLog_TypedConfig{TypedConfig: p.pack(&streamv3.StdoutAccessLog{
			AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: format},
		})}
	} else {
		l.ConfigType = &accesslogv3.AccessLog_TypedConfig{TypedConfig: p.pack(&filev3.FileAccessLog{
			Path: s.AccessLog, AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: format},
		})}
	}
	return append(list, l)
}

// buildAccessLog sends an entry for each request to the routers. Its entry ends the booking of a request.
func buildAccessLog(a audience, p *packer) *accesslogv3.AccessLog {
	var tags []*tracingv3.CustomTag
	if a.version.has(customTagsField) {
		tags = []*tracingv3.CustomTag{{
			Tag:  envoynames.TagFirstToken,
			Type: &tracingv3.CustomTag_Value{Value: firstTokenIn("us")},
		}}
	}
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.http_grpc",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: p.pack(&alsv3.HttpGrpcAccessLogConfig{
			CommonConfig: &alsv3.CommonGrpcAccessLogConfig{
				LogName:             "stator",
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcService:         extProcService(a),
				// Each entry is sent at once, so that it comes before the next request of the same client. With a
				// flush every 100 ms that request met the booking of the last one in all cases, and went to another
				// worker than the one with its cache in half of them; with one every 10 ms it still did on a busy
				// machine. The price is some ten microseconds of CPU time in Envoy for each request.
				BufferSizeBytes: wrapperspb.UInt32(0),
				CustomTags:      tags,
			},
		})},
	}
}

// firstTokenIn returns the operator for the time from the request to the first byte of the answer's body, in a unit. Envoys that know
// customTagsField know it.
func firstTokenIn(unit string) string {
	return "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:" + unit + ")%"
}

// lineOf returns the members of a line. None is of a body, a query or a header with credentials. A value that a request lacks is null.
func lineOf(s Settings, v Version) *structpb.Struct {
	routed := func(key string) string { return "%DYNAMIC_METADATA(" + envoynames.Namespace + ":" + key + ")%" }
	members := map[string]string{
		"time": "%START_TIME%", "request_id": "%REQ(x-request-id)%", "method": "%REQ(:method)%", "path": "%PATH(NQ)%",
		"protocol": "%PROTOCOL%",
		"status":   "%RESPONSE_CODE%", "details": "%RESPONSE_CODE_DETAILS%", "flags": "%RESPONSE_FLAGS%",
		"client": "%DOWNSTREAM_REMOTE_ADDRESS%", "upstream": "%UPSTREAM_HOST%", "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
		"duration_ms": "%DURATION%", "request_bytes": "%BYTES_RECEIVED%", "response_bytes": "%BYTES_SENT%",

		"decision": routed(envoynames.Decision), "model": routed(envoynames.Model), "worker": routed(envoynames.Worker),
		"prompt_tokens": routed(envoynames.PromptTokens), "cached_tokens": routed(envoynames.Overlap),
	}
	if s.TenantHeader != "" {
		members["tenant"] = "%REQ(" + s.TenantHeader + ")%"
	}
	if v.has(customTagsField) {
		members["first_token_ms"] = firstTokenIn("ms")
	}

	line := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for name, value := range members {
		line.Fields[name] = structpb.NewStringValue(value)
	}
	return line
}
