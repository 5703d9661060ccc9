package poolmetrics_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/extproc/poolmetrics"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route"
)

// TestPoolMetrics: figures of InferencePools have the names, labels and units of the inference extension. Engines without a report count by
// their bookings. A model without a pod keeps the pool of its last one.
func TestPoolMetrics(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	for _, name := range []string{"a", "b", "starting"} {
		w := fleet.Worker{Name: name, Model: "m", Address: "10.0.0.1:80", Engine: "vllm", Ranks: 1, Blocks: 100, State: fleet.Ready}
		if name == "starting" {
			w.State = fleet.Starting
		}
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	load := func(worker string) *fleet.Load {
		rank, ok := f.Snapshot().Rank(worker, 0)
		if !ok {
			t.Fatal("no worker ", worker)
		}
		return rank.Load
	}
	load("a").SetReport(fleet.Report{At: time.Now(), Running: 4, Waiting: 6, KVUsage: 0.5}, &fleet.Worker{Blocks: 100})
	load("b").Add(fleet.Amount{Requests: 2, DecodeBlocks: 20}, time.Now())

	pool := poolmetrics.Pool{Name: "qwen", Workers: []string{"a", "b", "starting", "unknown"}}
	queues := []route.QueueStats{{Pool: "m", Class: "chat", Requests: 2}, {Pool: "m", Class: "batch", Requests: 3}}
	c := poolmetrics.New(func() []poolmetrics.Pool {
		return []poolmetrics.Pool{pool, {Name: "other"}}
	}, f.Snapshot, func() []route.QueueStats { return queues })
	gathered := func() map[string]float64 {
		metrics := prometheus.NewRegistry()
		metrics.MustRegister(c)
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetName() + "=" + l.GetValue()
				}
				all[name] = m.GetGauge().GetValue()
			}
		}
		return all
	}

	const queue = " fairness_id=default-flow inference_pool=qwen model_name=m priority=0 target_model_name=m"
	got := gathered()
	for want, value := range map[string]float64{
		"inference_pool_ready_pods name=qwen":                                                            2,
		"inference_pool_ready_pods name=other":                                                           0,
		"inference_pool_average_kv_cache_utilization name=qwen":                                          0.35,
		"inference_pool_average_queue_size name=qwen":                                                    3,
		"inference_pool_average_running_requests name=qwen":                                              3,
		"inference_objective_running_requests model_name=m":                                              2,
		"inference_extension_flow_control_queue_size" + queue:                                            5,
		"llm_d_epp_ready_endpoints name=qwen":                                                            2,
		"llm_d_epp_average_kv_cache_utilization name=qwen":                                               0.35,
		"llm_d_epp_average_queue_size name=qwen":                                                         3,
		"llm_d_epp_average_running_requests name=qwen":                                                   3,
		"llm_d_epp_flow_control_queue_size" + queue:                                                      5,
		"llm_d_epp_request_running fairness_id=default-flow model_name=m priority=0 target_model_name=m": 2,
	} {
		if v, ok := got[want]; !ok || v != value {
			t.Errorf("%s is %v, want %v, among %v", want, v, value, got)
		}
	}

	for _, name := range []string{"a", "b", "starting"} {
		f.Remove(name)
	}
	pool.Workers = nil
	got = gathered()
	if v := got["inference_extension_flow_control_queue_size"+queue]; v != 5 || got["inference_pool_ready_pods name=qwen"] != 0 {
		t.Errorf("without a pod: %v", got)
	}
}
