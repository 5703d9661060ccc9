package bundle

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// removed stands in place of a secret.
const removed = "(removed)"

// secretKey matches the names of settings and variables whose values may be secrets.
var secretKey = regexp.MustCompile(`(?i)(pass(word)?|token|secret|credential|auth|(api|access|private|signing)[-_]?key|keys?)$`)

// harmless lists settings that secretKey matches and that have no secrets.
var harmless = regexp.MustCompile(`(?i)(file|max[-_].*tokens?|tokens?[-_]?(per|rate).*)$`)

// WithoutSecrets returns a configuration in YAML without its comments, the values of variables, logins in URLs, and values whose names
// are names of secrets. A file that cannot be read is left out, since its secrets cannot be found.
func WithoutSecrets(text []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("the configuration cannot be read, and is left out: %w", err)
	}
	clean(&doc, "")
	return yaml.Marshal(&doc)
}

// clean removes the secrets of a node below a key.
func clean(n *yaml.Node, key string) {
	n.HeadComment, n.LineComment = "", ""
	n.FootComment = ""
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			clean(n.Content[i], "")
			below := n.Content[i].Value
			if key == "env" {
				below = "secret" // variables of any name may have some
			}
			clean(n.Content[i+1], below)
		}
	case yaml.ScalarNode:
		if secretKey.MatchString(key) && !harmless.MatchString(key) && !isNumber(n) {
			n.SetString(removed)
			return
		}
		n.Value = withoutLogin(n.Value)
	case yaml.AliasNode: // its anchor is cleaned where it is
	default:
		cleanList(n, key)
	}
}

// cleanList removes the secrets of a list. The value of a command's option may be the next word.
func cleanList(n *yaml.Node, key string) {
	option := ""
	for _, c := range n.Content {
		below := key
		if c.Kind == yaml.ScalarNode {
			name, value, isBoth := strings.Cut(strings.TrimLeft(c.Value, "-"), "=")
			switch {
			case strings.HasPrefix(c.Value, "-") && isBoth && value != "" && secretKey.MatchString(name):
				c.SetString(strings.TrimSuffix(c.Value, value) + removed)
			case option != "":
				below = option
			}
			option = ""
			if strings.HasPrefix(c.Value, "-") && !isBoth {
				option = name
			}
		}
		clean(c, below)
	}
}

func isNumber(n *yaml.Node) bool { return n.Tag == "!!int" || n.Tag == "!!float" || n.Tag == "!!bool" }

// withoutLogin removes the user and the password of the URLs of a list with commas.
func withoutLogin(text string) string {
	if !strings.Contains(text, "://") || !strings.Contains(text, "@") {
		return text
	}
	parts := strings.Split(text, ",")
	for i, part := range parts {
		u, err := url.Parse(strings.TrimSpace(part))
		switch {
		case err != nil:
			parts[i] = removed
		case u.User != nil:
			u.User = nil
			parts[i] = u.String()
		}
	}
	return strings.Join(parts, ",")
}
