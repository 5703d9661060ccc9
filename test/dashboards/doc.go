// Package dashboards has the Grafana dashboards of examples/grafana as a table, and makes their files from it.
//
// A panel is there because an operator acts on it: Panel.Why has the question that it answers, and what to do when it looks bad. The tests
// check the queries of dashboards, recording rules and alerts against docs/metrics.md, which is made from the metrics that the
// program registers. `make test-dashboards` asks a real Prometheus each of them, under load.
package dashboards
