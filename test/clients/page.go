package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// gatewayOfPage is the gateway that the blocks name.
const gatewayOfPage = "http://127.0.0.1:8080"

// client is a section of the page.
type client struct {
	name   string
	blocks []block
}

// block is a code block. One whose path the sentence before it names is a file; others are run.
type block struct {
	language, path, text string
}

// fileBefore finds the path in "In `PATH`:", with which the paragraph before a file ends.
var fileBefore = regexp.MustCompile("In `([^`]+)`:$")

// parsePage returns the sections of a page that have blocks.
func parsePage(text string) ([]client, error) {
	var clients []client
	for _, section := range strings.Split(text, "\n## ")[1:] {
		name, rest, _ := strings.Cut(section, "\n")
		c := client{name: name}

		parts := strings.Split(rest, "```")
		if len(parts)%2 == 0 {
			return nil, fmt.Errorf("a block of %s has no end", name)
		}

		for i := 1; i < len(parts); i += 2 {
			language, code, _ := strings.Cut(parts[i], "\n")
			b := block{language: language, text: code}
			if found := fileBefore.FindStringSubmatch(strings.TrimSpace(parts[i-1])); found != nil {
				b.path = found[1]
			}
			c.blocks = append(c.blocks, b)
		}
		if len(c.blocks) > 0 {
			clients = append(clients, c)
		}
	}
	if len(clients) == 0 {
		return nil, errors.New("it has no blocks of code")
	}
	return clients, nil
}

// exports returns the lines of the client's blocks that set variables.
func (c *client) exports() string {
	var lines strings.Builder
	for _, b := range c.blocks {
		for line := range strings.Lines(b.text) {
			if b.language == "sh" && strings.HasPrefix(line, "export ") {
				lines.WriteString(line)
			}
		}
	}
	return lines.String()
}
