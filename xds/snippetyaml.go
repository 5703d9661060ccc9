package xds

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// comment is a text before one value of a message. path has the keys that lead to it, and the numbers of list elements,
// with slashes between them.
type comment struct{ path, text string }

// document is YAML: a mapping whose values are messages, with comments.
type document struct{ b bytes.Buffer }

// about writes a comment between parts.
func (d *document) about(text string) { fmt.Fprintf(&d.b, "%s\n\n", wrap(text)) }

// addMessage appends a message under a key. A comment whose place does not exist is an error: it would describe something
// that the document does not have.
func (d *document) addMessage(key, about string, m proto.Message, comments []comment) error {
	content, err := commentedNode(m, comments)
	if err != nil {
		return err
	}

	name := &yaml.Node{Kind: yaml.ScalarNode, Value: key, HeadComment: wrap(about)}
	e := yaml.NewEncoder(&d.b)
	e.SetIndent(2)
	if err := e.Encode(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{name, content}}); err != nil {
		return err
	}
	if err := e.Close(); err != nil {
		return err
	}
	d.b.WriteByte('\n')
	return nil
}

// commentedNode returns a message as YAML with comments. A comment whose place does not exist is an error here, so that
// both ways of printing find it.
func commentedNode(m proto.Message, comments []comment) (*yaml.Node, error) {
	content, err := messageNode(m)
	if err != nil {
		return nil, err
	}
	for _, c := range comments {
		if err := attach(content, c); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// messageNode returns a message as YAML.
func messageNode(m proto.Message) (*yaml.Node, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	// JSON is YAML. Its keys have the order of the fields.
	var parsed yaml.Node
	if err := yaml.Unmarshal(text, &parsed); err != nil {
		return nil, err
	}
	toBlocks(parsed.Content[0])
	return parsed.Content[0], nil
}

// toBlocks removes the quotes and brackets of JSON where YAML needs none.
func toBlocks(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		toBlocks(child)
	}
}

// attach puts a comment before the place that it names.
func attach(n *yaml.Node, c comment) error {
	var place *yaml.Node
	for step := range strings.SplitSeq(c.path, "/") {
		place, n = stepInto(n, step)
		if n == nil {
			return fmt.Errorf("there is nothing at %s, which has a comment", c.path)
		}
	}
	place.HeadComment = wrap(c.text)
	return nil
}

// stepInto returns the value at a key or number, and the node that takes its comment. value is nil if there is none.
func stepInto(n *yaml.Node, step string) (place, value *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		at, err := strconv.Atoi(step)
		if err != nil || at < 0 || at >= len(n.Content) {
			return nil, nil
		}
		return n.Content[at], n.Content[at]
	}

	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == step {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}

// commentWidth is the greatest number of characters of a comment in a line.
const commentWidth = 100

// wrap returns a text as the lines of a comment. Lines of the text that begin with a space stay as they are.
func wrap(text string) string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(paragraph, " ") {
			lines = append(lines, "# "+paragraph)
			continue
		}
		line := "#"
		for word := range strings.FieldsSeq(paragraph) {
			if len(line)+1+len(word) > commentWidth {
				lines = append(lines, line)
				line = "#"
			}
			line += " " + word
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
