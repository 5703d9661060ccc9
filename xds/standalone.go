package xds

import (
	"fmt"
	"strings"
)

// Standalone returns, as YAML, a ConfigMap with the bootstrap of an Envoy in a pod with a router and a control plane. namespace
// may be empty.
func Standalone(b BootstrapSettings, namespace string) ([]byte, error) {
	if namespace != "" && !objectName.MatchString(namespace) {
		return nil, fmt.Errorf("--namespace is %q: use the name of a namespace", namespace)
	}
	text, err := Bootstrap(b)
	if err != nil {
		return nil, err
	}
	// The text is a block of YAML, so each of its lines is indented.
	meta := "  name: stator-envoy\n"
	if namespace != "" {
		meta += "  namespace: " + namespace + "\n"
	}
	return []byte(wrap(aboutStandalone) + "\napiVersion: v1\nkind: ConfigMap\nmetadata:\n" + meta +
		"data:\n  envoy.json: |\n    " + strings.ReplaceAll(string(text), "\n", "\n    ") + "\n"), nil
}

const aboutStandalone = "An Envoy in the pod of a router, for clusters without a gateway. The pod has three containers that " +
	"reach each other at 127.0.0.1. Its Service leads to port 8080, if gateway.listen in stator.yaml is 0.0.0.0:8080:\n" +
	"  - name: router\n" +
	"    args: [extproc, --config, /etc/stator/stator.yaml, --pod-selector, app=vllm]\n" +
	"  - name: xds\n" +
	"    args: [xds, --config, /etc/stator/stator.yaml, --pod-selector, app=vllm]\n" +
	"  - name: envoy\n" +
	"    args: [--config-path, /etc/envoy/envoy.json, --service-node, $(POD_NAME)]\n" +
	"    volumeMounts: [{name: envoy, mountPath: /etc/envoy}]\n" +
	"The volume envoy is the ConfigMap below, and POD_NAME is metadata.name by the downward API: bookings of an Envoy that dies " +
	"are found by its name."
