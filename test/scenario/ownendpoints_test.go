package scenario

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestEndpointsOfAnOrdinaryEnvoy: an Envoy with a static configuration of its own gets the endpoints of one cluster from
// `stator xds`, in both variants of the protocol. Workers come and go with Stator's configuration, a control plane that starts again
// disturbs nothing, and a cluster whose name is no pool is named in its log.
func TestEndpointsOfAnOrdinaryEnvoy(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"DELTA_GRPC", "GRPC"} {
		t.Run(variant, func(t *testing.T) { endpointsOfAnOrdinaryEnvoy(t, variant) })
	}
}

func endpointsOfAnOrdinaryEnvoy(t *testing.T, variant string) {
	engines := simEngines(t, 3)
	xdsAt := freeAddress(t)
	var control *command
	serve := func(o *own) {
		control = start(t, "xds", "--config", o.file, "--listen-address", xdsAt, "--admin-address", "127.0.0.1:0")
	}
	o := startOwn(t, simFleet(engines[:2]...), func(o *own, config string) string {
		serve(o)
		return withVariant(t, config, variant)
	}, "--eds-only", "--xds-address", xdsAt)
	o.awaitMembers(2)
	sent := o.converse(4, 3)

	o.list(simFleet(engines...), 3)
	o.awaitMembers(3)
	eventually(t, "the new worker is used", func() error {
		sent += o.converse(8, 1)
		if o.used["c"] == 0 {
			return errNotYet
		}
		return nil
	})

	if text := control.out.String(); !strings.Contains(text, "cluster=nowhere") || !strings.Contains(text, "pools=pool/sim") {
		t.Errorf("the log does not name the cluster that is no pool:\n%s", text)
	}
	control.stop()
	sent += o.converse(3, 2)
	serve(o)
	eventually(t, "Envoy has found the control plane", func() error {
		if !strings.Contains(control.out.String(), "envoy subscribes to endpoints") {
			return errNotYet
		}
		return nil
	})
	o.list(simFleet("", engines[1], engines[2]), 2)
	o.awaitMembers(2)
	sent += o.converse(3, 2)
	o.assertServed(sent)
}

// withVariant has all endpoint subscriptions use a variant of the protocol, renames the pool, and adds a cluster whose name is no pool. The
// filter of the access log keeps the old name: entries with a booking pass it whatever the name.
func withVariant(t *testing.T, config, variant string) string {
	t.Helper()
	config = strings.ReplaceAll(config, "api_type: DELTA_GRPC", "api_type: "+variant)
	config = strings.ReplaceAll(config, "cluster: pool/sim", "cluster: "+ownPool)
	var parsed yamlMap
	if err := yaml.Unmarshal([]byte(config), &parsed); err != nil {
		t.Fatal(err)
	}

	static := parsed["static_resources"].(yamlMap)
	clusters := static["clusters"].([]any)
	for _, c := range clusters {
		pool := c.(yamlMap)
		if pool["name"] != "pool/sim" {
			continue
		}
		pool["name"] = ownPool
		eds := pool["eds_cluster_config"].(yamlMap)
		eds["service_name"] = "pool/sim"
		static["clusters"] = append(clusters, yamlMap{
			"name": "nowhere", "type": "EDS", "eds_cluster_config": yamlMap{"eds_config": eds["eds_config"]},
		})
	}
	out, err := yaml.Marshal(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// ownPool is the name of the pool in an Envoy that does not name its clusters as Stator does.
const ownPool = "engines"

// awaitMembers waits until Envoy has so many endpoints, all healthy.
func (o *own) awaitMembers(n int) {
	o.t.Helper()
	eventually(o.t, fmt.Sprintf("Envoy has %d endpoints", n), func() error {
		for _, stat := range []string{"membership_total", "membership_healthy"} {
			got, err := o.process.Stat(o.t.Context(), "cluster."+ownPool+"."+stat)
			if err != nil || got != n {
				return fmt.Errorf("%s is %d, %w", stat, got, err)
			}
		}
		return nil
	})
}

// list changes the configuration, and waits until the router has so many workers.
func (o *own) list(models string, n int) {
	o.t.Helper()
	text := "apiVersion: stator.dev/v1alpha1\nkind: Stator\n" + models
	if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
		o.t.Fatal(err)
	}
	eventually(o.t, fmt.Sprintf("the router has %d workers", n), func() error {
		if got := len(o.fleet()); got != n {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
}
