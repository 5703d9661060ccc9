package dynamograph

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/fleet"
)

// Graph is the part of a DynamoGraphDeployment that Stator takes over.
type Graph struct {
	// Name is the name of the object.
	Name string
	// Engine is the kind of its engines: vllm or sglang.
	Engine string
	// Model is the model as engines find it, a folder or ORG/NAME, and Served the name that clients use; empty if that is the same.
	Model, Served string
	// BlockSize is the tokens of a KV block; 0 is the engine's default.
	BlockSize int
	// Policy is the routing policy of its frontend; empty is the default.
	Policy string
	// TTFT and ITL are the targets of its planner; 0 is none.
	TTFT, ITL time.Duration
	// Pools are its engines, one pool for each role, in the order of the file.
	Pools []Pool
	// Notes are about the fields that Stator does not take over, in the order of the file.
	Notes []Note
}

// Pool is a component whose pods are engines.
type Pool struct {
	// Component is its name in the graph.
	Component string
	Role      fleet.Role
	Replicas  int
	// Scaled means that the number may change: the component has a scaling adapter, or the graph has a planner.
	Scaled bool
	// Image is the image of its engines; empty if the file has none.
	Image string
	// Args are the options of its engines, without leading hyphens, and Env their variables.
	Args map[string]any
	Env  map[string]string
}

// Note is a sentence about a field that is not taken over.
type Note struct{ Field, Why string }

// String returns the note as a line.
func (n Note) String() string { return n.Field + ": " + n.Why }

// The bounds of a file.
const (
	// MaxBytes is more than the API server accepts for an object.
	MaxBytes      = 2 << 20
	maxDocuments  = 64
	maxComponents = 64
	maxReplicas   = 256 // launch[].count
	maxDepth      = 32
)

// The object's kind, and the group of its versions.
const (
	kind  = "DynamoGraphDeployment"
	group = "nvidia.com/"
)

// Read reads a file with one DynamoGraphDeployment. Other objects beside it have a note each.
func Read(data []byte) (*Graph, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("the file has %d bytes; the limit is %d", len(data), MaxBytes)
	}
	r := &reader{}
	found, err := r.find(data)
	if err != nil {
		return nil, err
	}
	r.object(found)
	if r.err == nil {
		r.interpret()
	}
	if r.err != nil {
		return nil, r.err
	}
	return &r.graph, nil
}

// find returns the object among the documents of a file.
func (r *reader) find(data []byte) (found *yaml.Node, err error) {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		document := &yaml.Node{}
		err := documents.Decode(document)
		switch {
		case errors.Is(err, io.EOF) && found == nil:
			return nil, fmt.Errorf("the file has no object of kind %s", kind)
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, fmt.Errorf("parse YAML: %w", err)
		case n > maxDocuments:
			return nil, fmt.Errorf("the file has more than %d documents", maxDocuments)
		case len(document.Content) == 0 || isEmpty(document.Content[0]):
			continue
		}

		root := document.Content[0]
		if err := checkNodes(root, 0); err != nil {
			return nil, err
		}
		switch is := text(member(root, "kind")); {
		case is != kind:
			r.note(fmt.Sprintf("document %d", n), "it is a %s, and no %s: apply it by itself if the engines need it", quoted(is), kind)
		case found != nil:
			return nil, fmt.Errorf("the file has two objects of kind %s: keep one of them", kind)
		default:
			found = root
		}
	}
}

// checkNodes refuses what no object of Kubernetes has, so that the rest of the package needs no check of its own.
func checkNodes(n *yaml.Node, depth int) error {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return fmt.Errorf("line %d has an anchor or an alias: write the value in full", n.Line)
	case depth > maxDepth:
		return fmt.Errorf("line %d is nested too deeply", n.Line)
	}
	keys := map[string]bool{}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if child.Kind != yaml.ScalarNode || keys[child.Value] {
				return fmt.Errorf("line %d: the key %s is no text, or is there twice", child.Line, quoted(child.Value))
			}
			keys[child.Value] = true
		}
		if err := checkNodes(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// quoted returns a text of the file for a message: without control characters, and cut.
func quoted(s string) string { return strconv.QuoteToGraphic(s[:min(len(s), maxQuoted)]) }

// maxQuoted is the longest text of a file in a message, in bytes.
const maxQuoted = 80
