package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/hub"
)

// Pod is the command line of an engine that a pod runs, and no agent.
type Pod struct {
	// Command is the program with its arguments, and Env its variables, as name=value. They have $(POD_IP) where the IP of the pod belongs:
	// Kubernetes fills that in, if the variable POD_IP comes first.
	Command, Env []string
	// HTTP is the port of the engine's HTTP server, and Ports are the others by which it is reached, by name.
	HTTP  int
	Ports map[string]int
	// HealthPath answers when the engine is ready.
	HealthPath string
}

// PodPort is the port of an engine's HTTP server in a pod.
const PodPort = 8000

// The other ports of an engine in a pod. vLLM's own defaults are among them, so that routers find its events without a configuration.
const (
	podEvents   = 5557
	podReplay   = 5558
	podTransfer = 5600
)

// offline is the variable that keeps engines from downloading models, as an agent's engines must not.
const offline = "HF_HUB_OFFLINE="

// InPod returns the command line of a launch's engines for a pod. Its error is about engines that are no program of an image.
func InPod(m *config.Model, l *config.Launch) (*Pod, error) {
	kind := engines.Of(l.Engine)
	if kind.Launch.Shape != engines.ByOptions || kind.Launch.OptionsInFile {
		return nil, fmt.Errorf("engine %s cannot be in a manifest: use vllm or sglang", l.Engine)
	}
	launch, err := newLaunch(m, l, "")
	if err != nil {
		return nil, err
	}
	launch.Python = "python3"
	n, err := launch.transferPorts()
	if err != nil {
		return nil, err
	}
	c, err := launch.command(&Site{Host: "$(POD_IP)", inPod: true}, PodPort, podTransfer)
	if err != nil {
		return nil, err
	}

	p := &Pod{Command: append([]string{c.Path}, c.Args...), Env: c.Env, HTTP: PodPort, HealthPath: kind.HealthPath(m.Name),
		Ports: map[string]int{"events": podEvents, "replay": podReplay}}
	if n > 0 {
		p.Ports["transfer"] = podTransfer
	}
	if hub.IsRef(m.Path) { // the pod downloads the weights
		p.Env = slices.DeleteFunc(p.Env, func(v string) bool { return strings.HasPrefix(v, offline) })
	}
	return p, nil
}
