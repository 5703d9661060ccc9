package doctor

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/kubeapi"
)

// engine starts an HTTP server that lists a model as engines do, and returns its port.
func engine(t *testing.T, model, root string) int {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"data": [{"id": %q, "root": %q, "max_model_len": 4096}]}`, model, root)
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "sglang:num_running_reqs 0\n")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestCluster examines clusters. Each line of the input is an object:
//
//	pool NAME picker=SERVICE:PORT mode=FailOpen   an InferencePool of namespace llm, which selects app=NAME
//	pod NAME app=POOL role=prefill ready          a pod; the engine of each answers, unless its line has "silent"
//	service NAME port=N ready=N others=N          a Service with an EndpointSlice
//	broken STATUS                                 the API server answers everything with it
func TestCluster(t *testing.T) {
	datadriven.RunTest(t, "testdata/kubernetes.txt", func(t *testing.T, d *datadriven.TestData) string {
		api := kubeapi.New(t)
		port := engine(t, "qwen", "/models/qwen")
		silent := httptest.NewServer(http.NotFoundHandler())
		defer silent.Close()
		for line := range strings.SplitSeq(d.Input, "\n") {
			words := strings.Fields(line)
			values := map[string]string{}
			for _, w := range words[min(2, len(words)):] {
				key, value, _ := strings.Cut(w, "=")
				values[key] = value
			}
			number := func(key string) int {
				n, _ := strconv.Atoi(values[key])
				return n
			}
			_, isReady := values["ready"]
			switch words[0] {
			case "pool":
				api.PutPool("llm", words[1], map[string]string{"app": words[1]}, port)
				if name, at, ok := strings.Cut(values["picker"], ":"); ok {
					picked, _ := strconv.Atoi(at)
					api.NamePicker("llm", words[1], kubeapi.Picker{Name: name, Port: picked, FailureMode: values["mode"]})
				}
			case "pod":
				labels := map[string]string{"app": values["app"]}
				if role := values["role"]; role != "" {
					labels["llm-d.ai/role"] = role
				}
				ip := "127.0.0.1"
				if _, isSilent := values["silent"]; isSilent {
					ip = "127.0.0.77" // nothing listens there
				}
				api.PutPod(kubeapi.Pod{Namespace: "llm", Name: words[1], UID: words[1], IP: ip, Labels: labels, Ready: isReady})
			case "service":
				api.PutService("llm", words[1], number("port"), number("ready"), number("others"))
			case "broken":
				status, _ := strconv.Atoi(words[1])
				api.Break(status)
			default:
				t.Fatalf("%q", line)
			}
		}

		client, err := kubernetes.NewClient(api.URL)
		if err != nil {
			t.Fatal(err)
		}
		at := &Cluster{Client: client, Namespace: "llm", Service: "stator"}
		seen, _ := askCluster(t.Context(), http.DefaultClient, at, config.Default())
		var b strings.Builder
		diagnoseCluster(seen).Print(&b)
		return strings.NewReplacer(strconv.Itoa(port), "PORT").Replace(b.String())
	})
}

// TestClusterAndItsEngines: the engines of pods are examined as those of a router are.
func TestClusterAndItsEngines(t *testing.T) {
	api := kubeapi.New(t)
	labels := map[string]string{"app": "qwen"}
	api.PutPool("llm", "qwen", labels, engine(t, "qwen", "/models/qwen"))
	api.NamePicker("llm", "qwen", kubeapi.Picker{Name: "stator", Port: 9002})
	api.PutService("llm", "stator", 9002, 2, 0)
	api.PutPod(kubeapi.Pod{Namespace: "llm", Name: "a", UID: "a", IP: "127.0.0.1", Labels: labels, Ready: true})
	client, err := kubernetes.NewClient(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	base, err := config.ParsePartial([]byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels: [{name: qwen, path: /no/such/folder}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	d := Examine(t.Context(), Config{
		Fleet: base, Wait: time.Millisecond, Kubernetes: &Cluster{Client: client, Namespace: "llm", Service: "stator"},
	})
	var b strings.Builder
	d.Print(&b)
	for _, want := range []string{"model qwen: ", "/no/such/folder"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, &b)
		}
	}
	if d.Workers != 1 || strings.Contains(b.String(), "admin port") || strings.Contains(b.String(), "not in the router's fleet") {
		t.Errorf("%d engines:\n%s", d.Workers, &b)
	}
}

// TestAdvicesBelongToChecks: each advice for a control plane belongs to a check that exists, so a renamed check loses none.
func TestAdvicesBelongToChecks(t *testing.T) {
	names := map[string]bool{}
	for _, c := range envoyChecks {
		names[c.name] = true
	}
	for _, a := range advices {
		if !names[a.check] {
			t.Errorf("no check is named %s", a.check)
		}
	}
}
