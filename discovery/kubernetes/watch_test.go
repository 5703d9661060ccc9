package kubernetes

import (
	"encoding/json"
	"testing"
)

// FuzzEvent: any line of a watch is an event or an error, and a pod of it has at most one endpoint for each port.
func FuzzEvent(f *testing.F) {
	f.Add(`{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"n","resourceVersion":"7"},"status":{"podIP":"10.0.0.1"}}}`)
	f.Add(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`)
	f.Add(`{"type":"ERROR","object":{"kind":"Status","code":410}}`)
	f.Add(`{"type":"DELETED","object":null}`)
	f.Add(`{"type":"MODIFIED"}`)
	f.Fuzz(func(t *testing.T, line string) {
		pods := &follower[pod]{known: map[string]bool{}, change: func(_ string, p *pod) {
			if n := len(endpoints(p, []int{1, 2}, "n")); n != 0 && n != 2 {
				t.Errorf("%d endpoints", n)
			}
		}}
		pools := &follower[inferencePool]{known: map[string]bool{}, change: func(_ string, p *inferencePool) {
			if p != nil && (p.labels() == "") != (len(p.Spec.Selector.MatchLabels) == 0) {
				t.Errorf("labels %q", p.labels())
			}
		}}

		err := pods.event([]byte(line))
		if (pods.version == "") != (err != nil) {
			t.Errorf("%q: version %q, error %v", line, pods.version, err)
		}
		if err == nil && !json.Valid([]byte(line)) {
			t.Errorf("%q is no JSON", line)
		}
		_ = pools.event([]byte(line))
	})
}
