package xds

import (
	"strings"
	"testing"

	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3" // its messages are in the table
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// TestParseVersion reads versions of Envoy, and refuses versions that are not known by name.
func TestParseVersion(t *testing.T) {
	for text, want := range map[string]Version{"1.36": 36, "1.38.3": 38, "v1.40.0": 40} {
		v, err := ParseVersion(text)
		if err != nil || v != want {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
	for text, want := range map[string]string{
		"1.35": "no configuration for Envoy 1.35: 1.36 to 1.40 are supported", "1.41.0": "no configuration for Envoy 1.41",
		"2.0": "not a version", "": "not a version", "1.38-dev": "not a version", "1.99999999999999999999": "not a version",
	} {
		if _, err := ParseVersion(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestFieldsOfVersions: the table names fields that exist, and each is sent from its version on.
func TestFieldsOfVersions(t *testing.T) {
	for name, first := range since {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, ok := d.(protoreflect.FieldDescriptor); !ok {
			t.Errorf("%s is no field", name)
		}
		if first < oldestVersion || first > newestVersion {
			t.Errorf("%s is since %s", name, first)
		}
	}
	for _, tt := range []struct {
		v       Version
		field   protoreflect.FullName
		isThere bool
	}{
		{35, "envoy.config.route.v3.Route.request_body_buffer_limit", false},
		{36, "envoy.config.route.v3.Route.request_body_buffer_limit", true},
		{37, selectedHostField, false},
		{38, selectedHostField, true},
		{36, "envoy.config.route.v3.Route.name", true},
	} {
		if got := tt.v.has(tt.field); got != tt.isThere {
			t.Errorf("%s has %s: %t", tt.v, tt.field, got)
		}
	}
}

// TestTrim removes a new field from a cluster in which it is packed twice, and nothing else.
func TestTrim(t *testing.T) {
	for v, want := range map[Version]bool{37: false, 38: true} {
		c, err := buildPool("sim", Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if err := v.trim(c.ProtoReflect()); err != nil {
			t.Fatal(err)
		}

		var override overridev3.OverrideHost
		if err := c.LoadBalancingPolicy.Policies[0].TypedExtensionConfig.TypedConfig.UnmarshalTo(&override); err != nil {
			t.Fatal(err)
		}
		if got := override.SelectedHostKey != nil; got != want {
			t.Errorf("%s: selected_host_key is there: %t", v, got)
		}
		if len(override.OverrideHostSources) != 1 || c.OutlierDetection == nil {
			t.Errorf("%s: more was removed: %v", v, c)
		}
	}
}
