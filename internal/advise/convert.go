package advise

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/advise/dynamograph"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/plan"
)

// Conversion is a fleet of Dynamo as Stator has it.
type Conversion struct {
	// Config is the configuration, and Manifests are the objects that run the engines; nil without [Options.Output]. Both begin with the
	// notes about fields that are not taken over, as comments.
	Config, Manifests []byte
}

// settings and the types in it have the keys of a converted configuration.
type settings struct {
	APIVersion string          `yaml:"apiVersion"`
	Kind       string          `yaml:"kind"`
	Gateway    map[string]any  `yaml:"gateway"`
	Models     []modelSettings `yaml:"models"`
	Planner    map[string]any  `yaml:"planner,omitempty"`
}

type modelSettings struct {
	Name      string           `yaml:"name"`
	Path      string           `yaml:"path"`
	BlockSize int              `yaml:"blockSize,omitempty"`
	Router    map[string]any   `yaml:"router,omitempty"`
	Launch    []launchSettings `yaml:"launch"`
}

type launchSettings struct {
	Engine  string            `yaml:"engine"`
	Role    string            `yaml:"role,omitempty"`
	Count   int               `yaml:"count"`
	Min     int               `yaml:"min,omitempty"`
	Max     int               `yaml:"max,omitempty"`
	GPU     string            `yaml:"gpu,omitempty"`
	StartUp string            `yaml:"startUp"`
	Target  string            `yaml:"target,omitempty"`
	Args    map[string]any    `yaml:"args,omitempty"`
	Env     map[string]string `yaml:"env,omitempty"`
}

// Convert reads a fleet of Dynamo. The result has its model, its engines with their options, their numbers and roles, and nothing that was
// computed: `stator plan` without --from proposes another fleet.
func (p *Options) Convert(data []byte) (*Conversion, error) {
	g, err := dynamograph.Read(data)
	if err != nil {
		return nil, err
	}
	model := cmp.Or(g.Served, g.Model)
	m := modelSettings{Name: model, Path: pathOf(g.Model), BlockSize: g.BlockSize}
	if g.Policy != "" {
		m.Router = map[string]any{"policy": g.Policy}
	}
	scaled := slices.ContainsFunc(g.Pools, func(pool dynamograph.Pool) bool { return pool.Scaled })
	images := map[string]string{}
	for i := range g.Pools {
		l := p.launchOf(g, &g.Pools[i])
		if scaled && p.Output != "" {
			l.Target = p.target(model, g.Pools[i].Role)
		}
		images[g.Pools[i].Role.String()] = cmp.Or(p.Image, g.Pools[i].Image)
		m.Launch = append(m.Launch, l)
	}

	all := settings{
		APIVersion: config.APIVersion, Kind: config.Kind, Gateway: map[string]any{"listen": "127.0.0.1:8080"}, Models: []modelSettings{m},
	}
	if scaled {
		all.Planner = p.plannerOf(g)
	}
	text, err := encode([]settings{all})
	if err != nil {
		return nil, err
	}
	cfg, err := config.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the fleet: %w", err)
	}
	out := &Conversion{Config: append(comment(g), text...)}
	if p.Output == "" {
		return out, nil
	}

	for role, image := range images {
		if image == "" {
			return nil, fmt.Errorf("the %s engines have no image: name one with --image", role)
		}
	}
	manifests, err := p.manifests(&cfg.Models[0], func(role string) string { return images[role] })
	out.Manifests = append(comment(g), manifests...)
	return out, err
}

// pathOf returns where engines find a model: names of a hub have a prefix.
func pathOf(model string) string {
	org, name, hasOrg := strings.Cut(model, "/")
	if path.IsAbs(model) || !hasOrg || org == "." || org == ".." || strings.Contains(name, "/") {
		return model
	}
	return "hf:" + model
}

// launchOf returns the engines of a pool, and notes what their numbers cannot show.
func (p *Options) launchOf(g *dynamograph.Graph, pool *dynamograph.Pool) launchSettings {
	note := func(why string) {
		g.Notes = append(g.Notes, dynamograph.Note{Field: fmt.Sprintf("component %.80q", pool.Component), Why: why})
	}
	l := launchSettings{
		Engine: g.Engine, Count: max(1, pool.Replicas), GPU: p.GPUKind, StartUp: planStartUp.String(), Args: pool.Args, Env: pool.Env,
	}
	if pool.Role != fleet.Aggregated {
		l.Role = pool.Role.String()
	}
	if pool.Scaled {
		l.Min, l.Max = 1, min(scaledTo*l.Count, mostEngines)
		note("the graph has no bounds of its number: launch[].max is twice the present number, so set the most that you want")
	}
	if pool.Replicas == 0 {
		note("it has 0 replicas, and a launch has 1 at least: models[].idleAfter ends the engines of an idle model")
	}
	return l
}

// A pool that is scaled may grow to scaledTo times its number, as launch[].max allows.
const (
	scaledTo    = 2
	mostEngines = 256
)

// plannerOf returns the settings of the planner of a fleet that is scaled.
func (p *Options) plannerOf(g *dynamograph.Graph) map[string]any {
	out := map[string]any{"algorithm": plan.AlgorithmSLA, "connector": config.ConnectorLocal}
	for key, target := range map[string]time.Duration{"ttft": g.TTFT, "itl": g.ITL} {
		if target > 0 {
			out[key] = target.String()
		}
	}
	if p.Output != "" {
		out["connector"] = config.ConnectorKubernetes
	}
	return out
}

// comment returns the notes as comments of YAML.
func comment(g *dynamograph.Graph) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The fleet of the DynamoGraphDeployment %.80q.\n", g.Name)
	if len(g.Notes) > 0 {
		b.WriteString("#\n# Not taken over:\n")
	}
	for _, n := range g.Notes {
		fmt.Fprintf(&b, "# - %s\n", n)
	}
	return b.Bytes()
}

// encode returns values as documents of YAML.
func encode[T any](values []T) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), e.Close()
}
