package dashboards

import (
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// Rule is a rule of Prometheus: a recording rule has Record, and an alert has Alert.
type Rule struct {
	Record, Alert string
	Expr          string
	Annotations   map[string]string
}

// Rules returns the rules of the files of a folder that Prometheus reads, such as examples/prometheus: alerts.yaml and recording.yaml.
func Rules(folder string) (all []Rule, err error) {
	for _, name := range []string{"alerts.yaml", "recording.yaml"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		var file struct{ Groups []struct{ Rules []Rule } }
		if err := yaml.Unmarshal(text, &file); err != nil {
			return nil, err
		}
		for _, g := range file.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all, nil
}
