package dashboards

import (
	"bytes"
	"encoding/json"
)

// Sizes of Grafana's grid: two panels fill a row of 24 columns.
const (
	panelWidth  = 12
	panelHeight = 8
)

// schemaVersion is the dashboard format of Grafana 10. Later ones convert it.
const schemaVersion = 39

// The series from which Grafana lists the namespaces and the models.
const (
	namespaceSeries = "stator_build_info"
	modelSeries     = `namespace_model_code:stator_request_answers:rate5m{namespace=~"$namespace"}`
)

type object map[string]any

// JSON returns the file that Grafana imports.
func (d *Dashboard) JSON() ([]byte, error) {
	panels := make([]object, 0, len(d.Panels))
	for i, p := range d.Panels {
		panels = append(panels, p.object(i))
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // queries stay readable
	encoder.SetIndent("", "  ")
	err := encoder.Encode(object{
		"uid": "stator-" + d.File, "title": d.Title, "description": d.Purpose, "tags": []string{"stator"},
		"schemaVersion": schemaVersion, "refresh": "30s", "time": object{"from": "now-1h", "to": "now"},
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			variable("namespace", "Namespace", "label_values("+namespaceSeries+", namespace)"),
			variable("model", "Model", "label_values("+modelSeries+", model)"),
		}},
		"panels": panels,
	})
	return out.Bytes(), err
}

// source is the data source that the reader selects.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// variable returns a variable whose value is one or several of a query's, or all. All of them is a pattern that also matches series
// without the label: only Kubernetes adds a namespace.
func variable(name, label, query string) object {
	return object{
		"name": name, "label": label, "type": "query", "datasource": source, "refresh": 2, "sort": 1,
		"query": object{"query": query, "refId": name}, "definition": query,
		"multi": true, "includeAll": true, "allValue": ".*",
		"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}},
	}
}

// object returns the i-th panel of a dashboard.
func (p *Panel) object(i int) object {
	targets := make([]object, 0, len(p.Queries))
	for n, q := range p.Queries {
		targets = append(targets, object{
			"refId": string(rune('A' + n)), "datasource": source, "expr": q.Expr, "legendFormat": q.Legend, "range": true,
		})
	}
	return object{
		"id": i + 1, "type": "timeseries", "title": p.Title, "description": p.Why, "datasource": source, "targets": targets,
		"gridPos":     object{"x": i % 2 * panelWidth, "y": i / 2 * panelHeight, "w": panelWidth, "h": panelHeight},
		"fieldConfig": object{"defaults": object{"unit": p.Unit, "min": 0}, "overrides": []object{}},
		"options": object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
}
