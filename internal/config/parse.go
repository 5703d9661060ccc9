package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxBytes bounds the file; real ones have a few kilobytes.
const maxBytes = 4 << 20

// Parse reads one file. The error joins every problem found, one per line.
func Parse(data []byte) (*Config, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("the file has %d bytes; the limit is %d", len(data), maxBytes)
	}
	root, err := readDocument(data)
	if err != nil {
		return nil, err
	}

	c := &Config{}
	if errs := decode(root, c); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.Gateway.AffinityHeader = strings.ToLower(c.Gateway.AffinityHeader) // as Envoy spells headers
	c.Gateway.inherit()
	for i := range c.Models {
		c.Models[i].inherit()
		c.Models[i].Targets.inherit(&c.Planner)
	}

	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// readDocument reads the only document of a file.
func readDocument(data []byte) (*yaml.Node, error) {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	root := &yaml.Node{}
	if err := documents.Decode(root); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse YAML: %w", err)
	}

	second := &yaml.Node{}
	if err := documents.Decode(second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the file has a second YAML document (line %d): remove it, because only one is read", max(second.Line, 1))
	}
	return root, nil
}
