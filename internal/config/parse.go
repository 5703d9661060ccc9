package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"

	"go.yaml.in/yaml/v3"
)

// maxBytes bounds the file; real ones have a few kilobytes.
const maxBytes = 4 << 20

// Default returns the configuration of a file without settings and models.
func Default() *Config {
	c := &Config{}
	applyDefaults(reflect.ValueOf(c).Elem())
	c.APIVersion, c.Kind = APIVersion, Kind
	c.Gateway.inherit()
	return c
}

// Parse reads one file. The error joins every problem found, one per line.
func Parse(data []byte) (*Config, error) { return parse(data, false) }

// ParsePartial is Parse for a file that may name no model, because models are discovered.
func ParsePartial(data []byte) (*Config, error) { return parse(data, true) }

func parse(data []byte, mayLackModels bool) (*Config, error) {
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
	c.Gateway.inherit()
	for i := range c.Models {
		c.Models[i].inherit(&c.Gateway)
		c.Models[i].Targets.inherit(&c.Planner)
	}

	err = c.Validate()
	if len(c.Models) == 0 && !mayLackModels {
		err = errors.Join(err, errors.New("models: must name at least one model"))
	}
	if err != nil {
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
