package xds

import (
	"fmt"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

// failedDetail begins the response code details of Envoy's answers if no router has answered in time, and the filter fails
// closed.
const failedDetail = "ext_proc_error"

// buildLocalReplies writes Envoy's own answers as OpenAI errors. Answers of routers are errors of that form already
// and pass unchanged.
func buildLocalReplies(s Settings, p *packer) *hcmv3.LocalReplyConfig {
	// Answers of routers are recognized by the prefix of their response code details.
	ours := when(p, fmt.Sprintf("response.code_details.startsWith(%q)", envoynames.DetailPrefix))
	undecided := when(p, fmt.Sprintf("response.code == 503 && xds.route_name == %q || response.code_details.startsWith(%q)",
		undecidedName, failedDetail))
	// Envoy has other refusals with this status, such as that of an upgrade.
	notAllowed := when(p, `response.code == 403 && `+
		`(response.code_details.startsWith("jwt_authn") || response.code_details.startsWith("rbac"))`)
	retryAfter := []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "retry-after", Value: "1"}}}

	return &hcmv3.LocalReplyConfig{
		Mappers: []*hcmv3.ResponseMapper{
			{Filter: ours, BodyFormatOverride: &corev3.SubstitutionFormatString{
				Format:      &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: inline("%LOCAL_REPLY_BODY%")},
				ContentType: "application/json",
			}},
			{Filter: undecided, StatusCode: wrapperspb.UInt32(503), HeadersToAdd: retryAfter,
				BodyFormatOverride: openAIError("server_error", "no_decision",
					"No router decided about this request. Try again in a moment.")},
			{Filter: status(401), BodyFormatOverride: openAIError("invalid_request_error", "invalid_api_key",
				"The API key or token is missing, wrong or expired (%RESPONSE_CODE_DETAILS%). Send one as: authorization: Bearer KEY.")},
			{Filter: notAllowed, BodyFormatOverride: openAIError("permission_error", "not_allowed",
				"The token is valid, and not for this gateway, or it names no tenant (%RESPONSE_CODE_DETAILS%).")},
			{Filter: status(408), BodyFormatOverride: openAIError("invalid_request_error", "request_timeout",
				"The request did not arrive in time (%RESPONSE_CODE_DETAILS%). Send it faster.")},
			{Filter: status(413), BodyFormatOverride: openAIError("invalid_request_error", "request_too_large",
				fmt.Sprintf("The request body is larger than the limit of %d bytes. Send a shorter one.", s.MaxBodyBytes))},
			{Filter: status(503), HeadersToAdd: retryAfter, BodyFormatOverride: openAIError("server_error", "no_worker",
				"No worker could take the request (%RESPONSE_CODE_DETAILS%). Try again in a moment.")},
			{Filter: status(504), BodyFormatOverride: openAIError("server_error", "timeout",
				"The worker did not answer in time (%RESPONSE_CODE_DETAILS%). Try again in a moment.")},
		},
		BodyFormat: openAIError("gateway_error", "gateway_error",
			"The gateway answered %RESPONSE_CODE% itself: %RESPONSE_CODE_DETAILS%."),
	}
}

// when matches answers by an expression of CEL.
func when(p *packer, expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name:       "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: p.pack(&celv3.ExpressionFilter{Expression: expression})},
		},
	}}
}

// inline returns a text as a data source.
func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

// status matches answers with an HTTP status.
func status(code uint32) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{
		StatusCodeFilter: &accesslogv3.StatusCodeFilter{Comparison: &accesslogv3.ComparisonFilter{
			Op: accesslogv3.ComparisonFilter_EQ,
			// Envoy requires a runtime key. No runtime layer sets it.
			Value: &corev3.RuntimeUInt32{DefaultValue: code, RuntimeKey: fmt.Sprintf("stator.status.%d", code)},
		}},
	}}
}

// openAIError returns the format of an error in the API of OpenAI. Texts may have Envoy's %COMMANDS%. A code that is
// one command would become a number, which typed clients refuse.
func openAIError(kind, code, message string) *corev3.SubstitutionFormatString {
	text := structpb.NewStringValue
	return &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: map[string]*structpb.Value{
			"error": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				"message": text(message), "type": text(kind), "param": structpb.NewNullValue(), "code": text(code),
			}}),
		}}},
		ContentType: "application/json",
	}
}
