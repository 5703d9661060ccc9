package messages

// The numbers of the protobuf fields that the package reads and writes. They come from Envoy's and
// protobuf's .proto files, and never change.

// envoy.service.ext_proc.v3.ProcessingRequest. Flow control has fields beside the oneof of the content. The
// router does not use it, so a message with them counts as unexpected content.
const (
	requestRequestHeaders     = 2
	requestResponseHeaders    = 3
	requestRequestBody        = 4
	requestResponseBody       = 5
	requestRequestTrailers    = 6
	requestResponseTrailers   = 7
	requestMetadataContext    = 8
	requestAttributes         = 9
	requestObservabilityMode  = 10
	requestProtocolConfig     = 11
	requestFlowControlInit    = 12
	requestClientWindowUpdate = 13
)

// envoy.service.ext_proc.v3.ProtocolConfiguration.
const (
	configRequestBodyMode  = 1
	configResponseBodyMode = 2
)

// envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.
const processingRequestBodyMode = 3

// envoy.service.ext_proc.v3.HttpHeaders and HttpBody.
const (
	headersHeaders     = 1
	headersEndOfStream = 3

	bodyBody        = 1
	bodyEndOfStream = 2
)

// envoy.config.core.v3.HeaderMap, HeaderValue and HeaderValueOption.
const (
	headerMapHeaders = 1

	headerKey      = 1
	headerValue    = 2
	headerRawValue = 3

	optionHeader       = 1
	optionAppendAction = 3
)

// envoy.service.ext_proc.v3.ProcessingResponse, HeadersResponse and BodyResponse.
const (
	responseRequestHeaders         = 1
	responseResponseHeaders        = 2
	responseRequestBody            = 3
	responseResponseBody           = 4
	responseRequestTrailers        = 5
	responseResponseTrailers       = 6
	responseDynamicMetadata        = 8
	responseModeOverride           = 9
	responseOverrideMessageTimeout = 10

	answerCommon = 1
)

// envoy.service.ext_proc.v3.CommonResponse, HeaderMutation, BodyMutation and StreamedBodyResponse.
const (
	commonHeaderMutation  = 2
	commonBodyMutation    = 3
	commonClearRouteCache = 5

	headerMutationSet    = 1
	headerMutationRemove = 2

	bodyMutationBody     = 1
	bodyMutationStreamed = 3

	streamedBody        = 1
	streamedEndOfStream = 2
)

// google.protobuf.Duration, Struct and Value, and the entries of every map.
const (
	durationSeconds = 1
	durationNanos   = 2

	structFields  = 1 // and filter_metadata of envoy.config.core.v3.Metadata
	metadataTyped = 2

	valueNull   = 1
	valueNumber = 2
	valueString = 3
	valueBool   = 4
	valueStruct = 5
	valueList   = 6

	listValues = 1

	entryKey   = 1
	entryValue = 2
)

// envoy.service.accesslog.v3.StreamAccessLogsMessage and its HTTPAccessLogEntries.
const (
	streamHTTPLogs = 2

	entriesLogEntry = 1
)

// envoy.data.accesslog.v3.HTTPAccessLogEntry, HTTPRequestProperties, HTTPResponseProperties and AccessLogCommon.
const (
	logCommonProperties = 1
	logRequest          = 3
	logResponse         = 4

	requestID = 9

	responseCode      = 1
	responseBodyBytes = 3

	commonTimeToFirstUpstreamByte = 9
	commonTimeToLastUpstreamByte  = 10
	commonUpstreamRemoteAddress   = 13
	commonResponseFlags           = 16
	commonMetadata                = 17
	commonCustomTags              = 22
	commonUpstreamRequestAttempts = 24
)

// envoy.config.core.v3.Address and its SocketAddress.
const (
	addressSocket   = 1
	addressPipe     = 2
	addressInternal = 3

	socketAddress   = 2
	socketPort      = 3
	socketNamedPort = 4
)

// envoy.data.accesslog.v3.ResponseFlags.
const (
	flagNoHealthyUpstream               = 2
	flagUpstreamRequestTimeout          = 3
	flagUpstreamRemoteReset             = 5
	flagUpstreamConnectionFailure       = 6
	flagUpstreamConnectionTermination   = 7
	flagUpstreamOverflow                = 8
	flagDownstreamConnectionTermination = 15
	flagStreamIdleTimeout               = 17
	flagUpstreamProtocolError           = 24
	flagDownstreamRemoteReset           = 28
)

// google.protobuf.UInt32Value and UInt64Value.
const wrapperValue = 1

// google.protobuf.Any.
const (
	anyType  = 1
	anyValue = 2
)

// envoy.data.ai.v3.TokenUsage.
const usageOutputTokens = 4
