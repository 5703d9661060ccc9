package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/hub"
)

// Configured returns the engines that the agent of a node can run: as many as launch[].max, of which those above launch[].count are spare.
// Workers are named after their node and model, with a number that counts the model's engines on all nodes, spare ones included: another
// count renames none.
func Configured(cfg *config.Config, node string) ([]Launch, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}

	var all []Launch
	for i := range cfg.Models {
		m := &cfg.Models[i]
		number := 0
		for k := range m.Launch {
			l := &m.Launch[k]
			if l.Target != "" {
				continue // Kubernetes starts them
			}
			launch, err := newLaunch(m, l, self)
			if err != nil {
				return nil, fmt.Errorf("models[%d]: %w", i, err)
			}
			most := max(l.Count, l.Max)
			groups, err := launch.shareGPUs(l.Devices(), most)
			if err != nil {
				return nil, fmt.Errorf("models[%d].launch[%d].gpus: %w", i, k, err)
			}
			for n := range most {
				launch.Name = workerName(node, m.Name, number)
				launch.GPUs, launch.Spare = groups[n], n >= l.Count
				number++
				if l.Node == node {
					all = append(all, launch)
				}
			}
		}
	}
	return all, nil
}

// newLaunch returns a launch without its name.
func newLaunch(m *config.Model, l *config.Launch, self string) (Launch, error) {
	role, err := fleet.ParseRole(l.Role)
	if err != nil {
		return Launch{}, err
	}
	taints, err := fleet.NewTaints(l.Taints)
	if err != nil {
		return Launch{}, err
	}

	args, err := arguments(l)
	if err != nil {
		return Launch{}, err
	}
	var adapters []string
	loads := false
	for _, a := range m.Adapters {
		if a.Path != "" {
			loads = true // when a request for it comes
			continue
		}
		adapters = append(adapters, a.Name)
	}
	modelPath, err := enginePath(m.Path, l.Engine)
	if err != nil {
		return Launch{}, err
	}
	interpreter := cmp.Or(l.Python, python(self))
	if l.Dir != "" {
		// Paths of the file are relative to the agent's folder, not to the engine's folder.
		modelPath, interpreter = absolute(modelPath), absolute(interpreter)
	}
	return Launch{
		Kind: l.Engine, Model: m.Name, ModelPath: modelPath, Aliases: m.Aliases, Adapters: adapters, LoadAdapters: loads,
		Role: role, BlockSize: m.LaunchBlockSize(), KVStore: m.KV.HostBytes > 0 && l.UsesStore(),
		Command: l.Command, Args: args, Taints: taints, Survive: l.Survive, Self: self,
		Python: interpreter, Env: l.Env, Dir: l.Dir,
	}, nil
}

// enginePath returns the path of a model as a kind of engine takes it. Engines find the weights of a model on a hub themselves, in the
// cache or there, by its name.
func enginePath(path, kind string) (string, error) {
	if !hub.IsRef(path) || kind == engines.Sim.Name {
		return path, nil
	}
	ref, err := hub.ParseRef(path)
	if err != nil {
		return "", fmt.Errorf("path: %w", err)
	}
	if ref.Revision != hub.MainRevision {
		return "", fmt.Errorf("launch: the path %s has a revision, which engines do not get: leave it out, or name a folder", path)
	}
	return ref.Name(), nil
}

// arguments returns the settings of a launch as texts.
func arguments(l *config.Launch) (map[string]string, error) {
	args := map[string]string{}
	for key, value := range l.Args {
		text, err := argument(value)
		if err != nil {
			return nil, fmt.Errorf("launch: args.%s: %w", key, err)
		}
		args[key] = text
	}
	return args, nil
}

// absolute returns the absolute path of a file that is there, and other texts as they are: names of commands and models.
func absolute(path string) string {
	if _, err := os.Stat(path); err != nil {
		return path
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	return full
}

// argument returns a setting as the text of a command line: maps and lists as JSON, all else as it is written.
func argument(value any) (string, error) {
	switch value.(type) {
	case map[string]any, []any:
		text, err := json.Marshal(value)
		return string(text), err
	}
	return fmt.Sprint(value), nil
}

// maxModelInName bounds the part of a worker's name that is the model's name.
const maxModelInName = 40

// workerName returns a name such as sim-0 or n1.meta-llama-llama-3-1-8b-0.
func workerName(node, model string, number int) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		}
		return '-'
	}, model)

	name := strings.Trim(clean, "-")
	if len(name) > maxModelInName {
		name = name[:maxModelInName]
	}
	return fleet.WorkerName(node, name+"-"+strconv.Itoa(number))
}

// python returns the interpreter of the virtual environment beside this program, or the first python3 in
// PATH.
func python(self string) string {
	venv := filepath.Join(filepath.Dir(filepath.Dir(self)), ".venv", "bin", "python")
	if _, err := os.Stat(venv); err == nil {
		return venv
	}
	return "python3"
}
