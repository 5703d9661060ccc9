package xds

import (
	"fmt"
	"regexp"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Version is a minor version of Envoy 1: 38 is Envoy 1.38.
type Version int

// The versions whose accepted fields are known.
const (
	oldestVersion Version = 36
	newestVersion Version = 40
)

// The oldest and the newest Envoy that are supported.
const (
	OldestVersion = oldestVersion
	NewestVersion = newestVersion
)

// String returns the version as in 1.38.
func (v Version) String() string { return fmt.Sprintf("1.%d", int(v)) }

var versionRE = regexp.MustCompile(`^v?1\.(\d{1,3})(\.\d{1,3})?$`)

// ParseVersion reads a version such as 1.38 or 1.38.3. It refuses versions that Snippet does not know.
func ParseVersion(text string) (Version, error) {
	m := versionRE.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q is not a version of Envoy: write it as %s", text, newestVersion)
	}
	minor, err := strconv.Atoi(m[1])
	if err != nil {
		return 0, err
	}

	v := Version(minor)
	if v < oldestVersion || v > newestVersion {
		return 0, fmt.Errorf("there is no configuration for Envoy %s: %s to %s are supported", v, oldestVersion, newestVersion)
	}
	return v, nil
}

// since is the first version that has a field. An older Envoy refuses a static configuration with an unknown field, and
// ignores the field when it comes from a control plane. Fields that oldestVersion has are not listed, but for the bound of
// bodies, whose absence in Envoy 1.35 is the reason why that version is not supported.
var since = map[protoreflect.FullName]Version{
	"envoy.config.route.v3.Route.request_body_buffer_limit":       36,
	"envoy.config.route.v3.VirtualHost.request_body_buffer_limit": 36,

	selectedHostField: 38,
	customTagsField:   37,
	passHeaderField:   38,

	"envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor.status_on_error":                      36,
	"envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor.processing_request_modifier":          36,
	"envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor.allow_content_length_header":          38,
	"envoy.extensions.filters.http.ext_proc.v3.MetadataOptions.cluster_metadata_forwarding_namespaces": 37,
	"envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor.emit_client_span":                     40,
	"envoy.extensions.upstreams.http.v3.HttpProtocolOptions.hash_policy":                               37,
	"envoy.config.route.v3.RetryPolicy.refresh_cluster_on_retry":                                       39,

	// Messages of routers. They are sent to every Envoy, so they must not have these.
	"envoy.service.ext_proc.v3.ProcessingResponse.streamed_immediate_response": 37,
	"envoy.service.ext_proc.v3.ProcessingResponse.typed_dynamic_metadata":      40,
}

// sizeLimitVersion is the first version that has the filter body_size_limit.
const sizeLimitVersion Version = 40

// usageVersion is the first version whose filter ai_protocol_manager reads the usage in answers.
const usageVersion Version = 40

// routeBufferVersion is the first version in which a route's bound of bodies applies to filters that read the whole body.
// Envoy 1.36 applies it after them: https://github.com/envoyproxy/envoy/pull/42607.
const routeBufferVersion Version = 37

// customTagsField has the custom tag with the time of the first token. Envoy 1.36 has no tags with operators of access logs, and not the
// time of the first byte of a response's body.
const customTagsField protoreflect.FullName = "envoy.extensions.access_loggers.grpc.v3.CommonGrpcAccessLogConfig.custom_tags"

// selectedHostField is the field in which Envoy writes the address that served a request, for routers that follow responses.
const selectedHostField protoreflect.FullName = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost.selected_host_key"

// passHeaderField has Envoy pass the header traceparent on as routers have set it.
const passHeaderField protoreflect.FullName = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.Tracing." +
	"no_context_propagation"

// has reports whether an Envoy of this version knows a field.
func (v Version) has(field protoreflect.FullName) bool { return v >= since[field] }

// BoundsBodiesByRoute reports whether the bound of a route applies to filters that read the whole body.
func (v Version) BoundsBodiesByRoute() bool { return v >= routeBufferVersion }

// hasSizeLimit reports whether an Envoy of this version has a filter that bounds bodies without keeping them.
func (v Version) hasSizeLimit() bool { return v >= sizeLimitVersion }

// hasUsage reports whether an Envoy of this version can read the usage in answers.
func (v Version) hasUsage() bool { return v >= usageVersion }

// versionOf returns the version of the Envoy with this node, by which its configuration is chosen. One that does not name its
// version, or that is newer than the newest known, counts as the newest known. ok is false if it is too old.
func versionOf(node *corev3.Node) (v Version, ok bool) {
	number := node.GetUserAgentBuildVersion().GetVersion()
	switch {
	case number == nil || number.GetMajorNumber() > 1 || number.GetMinorNumber() > uint32(newestVersion):
		return newestVersion, true
	case number.GetMajorNumber() < 1 || number.GetMinorNumber() < uint32(oldestVersion):
		return 0, false
	}
	return Version(number.GetMinorNumber()), true
}

// trimmed returns copies of messages without the fields that this version does not have.
func trimmed[T proto.Message](v Version, in []T) ([]T, error) {
	out := make([]T, len(in))
	for i, m := range in {
		out[i] = proto.CloneOf(m)
		if err := v.trim(out[i].ProtoReflect()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// trim removes from a message, and from all messages in it, the fields that this version does not have.
func (v Version) trim(m protoreflect.Message) error {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		return v.trimAny(packed)
	}

	var err error
	m.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case !v.has(f.FullName()):
			m.Clear(f)
		case f.IsMap():
			if f.MapValue().Message() == nil {
				break
			}
			value.Map().Range(func(_ protoreflect.MapKey, entry protoreflect.Value) bool {
				err = v.trim(entry.Message())
				return err == nil
			})
		case f.Message() == nil:
		case f.IsList():
			for i := 0; i < value.List().Len() && err == nil; i++ {
				err = v.trim(value.List().Get(i).Message())
			}
		default:
			err = v.trim(value.Message())
		}
		return err == nil
	})
	return err
}

// trimAny trims a packed message.
func (v Version) trimAny(packed *anypb.Any) error {
	if packed.GetTypeUrl() == "" {
		return nil
	}
	m, err := packed.UnmarshalNew()
	if err != nil {
		return err
	}

	if err := v.trim(m.ProtoReflect()); err != nil {
		return err
	}
	packed.Value, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return err
}
