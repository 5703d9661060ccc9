package config

import (
	"errors"
	"fmt"
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
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("parse YAML: %w", err)
	}

	c := &Config{}
	if errs := decode(&root, c); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.Gateway.AffinityHeader = strings.ToLower(c.Gateway.AffinityHeader) // as Envoy spells headers
	for i := range c.Models {
		c.Models[i].Router.inherit()
	}

	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}
