package xds_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/xds"
)

// TestBuild prints the configuration of Envoy for a fleet. Verbs:
//
//	worker name=w model=m address=ip:port [weight=n] [state=ready|starting|draining|down]
//	gone name=w
//	left model=m address=ip:port    a worker that has gone a moment ago
//	build [models=(a,b)] [extproc=address] [secrets=folder] [affinity=file] [traces=url] show=(listener,routes,clusters,endpoints,tracing)
//
// Run with -rewrite to update, and read the diff: every Envoy will get it.
func TestBuild(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		f := fleet.New(fleet.Hooks{})
		var left []xds.Leaving
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "worker":
				w := fleet.Worker{Ranks: 1, Engine: "vllm", State: stateOf(t, d)}
				d.ScanArgs(t, "name", &w.Name)
				d.ScanArgs(t, "model", &w.Model)
				d.ScanArgs(t, "address", &w.Address)
				var weight int
				d.MaybeScanArgs(t, "weight", &weight)
				w.Weight = uint32(weight)
				if _, err := f.Put(w); err != nil {
					return err.Error() + "\n"
				}
				return ""
			case "gone":
				var name string
				d.ScanArgs(t, "name", &name)
				f.Remove(name)
				return ""
			case "left":
				var l xds.Leaving
				d.ScanArgs(t, "model", &l.Model)
				d.ScanArgs(t, "address", &l.Address)
				left = append(left, l)
				return ""
			case "build":
				return build(t, d, f.Snapshot(), left)
			}
			d.Fatalf(t, "unknown verb %s", d.Cmd)
			return ""
		})
	})
}

func stateOf(t *testing.T, d *datadriven.TestData) fleet.State {
	name := "ready"
	d.MaybeScanArgs(t, "state", &name)
	for s := fleet.Starting; s <= fleet.Down; s++ {
		if s.String() == name {
			return s
		}
	}
	d.Fatalf(t, "unknown state %s", name)
	return 0
}

func build(t *testing.T, d *datadriven.TestData, snap *fleet.Snapshot, left []xds.Leaving) string {
	s := xds.Settings{
		Listen: "127.0.0.1:8080", ExtProc: []string{"unix:///run/extproc.sock"}, Models: []string{"sim"}, MaxBodyBytes: 1 << 20,
		DecisionTimeout: 5 * time.Second, IdleTimeout: 10 * time.Minute, AttemptIdleTimeout: 5 * time.Minute,
		SessionHeaders: []string{"x-session-id"},
	}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "models":
			s.Models = a.Vals
		case "extproc":
			s.ExtProc = a.Vals
		case "traces":
			s.Tracing = xds.Tracing{Receiver: a.Vals[0], Ratio: 0.25}
		case "affinity":
			s.AffinityModule = a.Vals[0]
		case "secrets":
			s.ExtProcSecrets, s.ExtProcServerName = a.Vals[0], xds.DefaultExtProcServerName
		}
	}
	r, err := xds.Build(s, snap, left...)
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for _, a := range d.CmdArgs {
		if a.Key != "show" {
			continue
		}
		for _, what := range a.Vals {
			for _, m := range pick(t, r, what) {
				b.WriteString(asYAML(t, m))
			}
		}
	}
	return b.String()
}

func pick(t *testing.T, r xds.Resources, what string) (out []proto.Message) {
	switch what {
	case "listener":
		for _, m := range r.Listeners {
			out = append(out, m)
		}
	case "routes":
		for _, m := range r.Routes {
			out = append(out, m)
		}
	case "clusters":
		for _, m := range r.Clusters {
			out = append(out, m)
		}
	case "endpoints":
		for _, m := range r.Endpoints {
			out = append(out, m)
		}
	case "tracing":
		var manager hcmv3.HttpConnectionManager
		if err := r.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(&manager); err != nil {
			t.Fatal(err)
		}
		out = append(out, manager.Tracing, manager.RequestIdExtension)
		for _, m := range r.Clusters {
			if m.Name == "stator_traces" {
				out = append(out, m)
			}
		}
	}
	return out
}

func asYAML(t *testing.T, m proto.Message) string {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(whole(v))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// whole writes whole numbers without a fraction: JSON has floats alone.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = whole(v[k])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

func TestBuildIsDeterministic(t *testing.T) {
	s := xds.Settings{Listen: "127.0.0.1:8080", ExtProc: []string{"127.0.0.1:9002"}, Models: []string{"a", "b"}, MaxBodyBytes: 1 << 20, SessionHeaders: []string{"x-session-id"}, IdleTimeout: time.Minute, DecisionTimeout: time.Second}
	f := fleet.New(fleet.Hooks{})
	for i := range 20 {
		if _, err := f.Put(fleet.Worker{Name: fmt.Sprintf("w%d", i), Model: "a", Address: fmt.Sprintf("10.0.0.%d:80", i+1), Ranks: 1, State: fleet.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	bytesOf := func() string {
		r, err := xds.Build(s, f.Snapshot())
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, c := range r.Clusters {
			raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(raw)
		}
		return b.String()
	}
	first := bytesOf()
	if _, err := f.Put(fleet.Worker{Name: "another", Model: "a", Address: "10.0.1.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if bytesOf() != first {
			t.Fatal("clusters changed although only the workers did: Envoy would warm them again")
		}
	}
}
