package config

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
)

// Emitter is a cache outside engines that publishes its blocks in vLLM's format over ZMQ, as LMCache's coordinator does.
type Emitter struct {
	// Name is unique among the emitters of the file and matches [a-z0-9-]+.
	Name string `yaml:"name" default:"required"`
	// KVEvents is the ZMQ endpoint on which it publishes, such as "tcp://10.0.0.1:5557".
	KVEvents string `yaml:"kvEvents" default:"required"`
	// KVReplay is the ZMQ endpoint on which it replays. Without it, a gap or a lost connection leaves the emitter stale until it restarts.
	KVReplay string `yaml:"kvReplay" default:"none"`
	// Node is the node whose workers can load its blocks: the part before the dot in the names of workers with an agent.
	Node string `yaml:"node" default:"all workers of the model"`
	// Workers are the names of the workers that can load its blocks, in place of a node.
	Workers []string `yaml:"workers" default:"all workers of the model"`
	// Topic is the topic of its messages. Messages on the endpoint with other topics are of other caches.
	Topic string `yaml:"topic" default:"kv@node:NODE@MODEL with node, else kv@pool:…@MODEL; required with workers"`
}

// maxEmitters bounds the emitters of one model. Each is a connection of each router.
const maxEmitters = 1024

// maxTopic bounds the bytes of a topic.
const maxTopic = 1024

// emitters checks the caches outside engines of a model. names has the emitters of the models before.
func (v *validator) emitters(m *Model, path string, names map[string]string) {
	v.is(len(m.Emitters) <= maxEmitters, path, "has %d entries: there may be %d", len(m.Emitters), maxEmitters)
	v.is(m.Path != "" || len(m.Emitters) == 0, path, "has no effect until path is set: prompts that are not read are found in no cache")
	for i := range m.Emitters {
		e, at := &m.Emitters[i], fmt.Sprintf("%s[%d]", path, i)
		v.is(fleet.ValidName(e.Name), at+".name", "is %q: it must be [a-z0-9-]+ and have at most %d characters", e.Name, fleet.MaxName)
		v.is(names[e.Name] == "", at+".name", "is taken by %s", names[e.Name])
		names[e.Name] = at

		v.is(isEndpoint(e.KVEvents, false), at+".kvEvents", "is %q: use tcp://host:port or ipc:///path", e.KVEvents)
		v.is(e.KVReplay == "" || isEndpoint(e.KVReplay, false), at+".kvReplay", "is %q: use tcp://host:port or ipc:///path", e.KVReplay)
		v.is(e.Node == "" || fleet.ValidName(e.Node), at+".node", "is %q: it must be [a-z0-9-]+", e.Node)
		v.is(e.Node == "" || len(e.Workers) == 0, at+".node", "and workers are both places: give one of them")
		v.is(len(e.Workers) == 0 || e.Topic != "", at+".topic", "is required with workers: it does not follow from their names")
		v.is(len(e.Topic) <= maxTopic, at+".topic", "must have at most %d bytes", maxTopic)
		for j, w := range e.Workers {
			v.is(fleet.ValidWorkerName(w), fmt.Sprintf("%s.workers[%d]", at, j), "is %q: use the name of a worker", w)
		}
	}
}
