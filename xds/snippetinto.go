package xds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// AddSnippet returns a static configuration of an Envoy, in YAML, with the parts of Snippet at their places. Comments, keys and their
// order stay; blank lines and indentation may change. host names the virtual host; it may be empty if the configuration has one alone. An
// error names what is absent, ambiguous or there already.
func AddSnippet(config []byte, s SnippetSettings, host string) ([]byte, error) {
	parts, err := s.parts()
	if err != nil {
		return nil, err
	}
	root, err := readDocument(config)
	if err != nil {
		return nil, err
	}
	static, err := member(root, partClusters)
	if err != nil {
		return nil, err
	}
	at, err := findHost(static, host)
	if err != nil {
		return nil, err
	}

	// Elements are added to the nodes of the file itself. Nothing that was there is decoded, so nothing of it can be lost or written
	// in another form, such as numbers, quotes and fields that this program does not know.
	to := map[string]*yaml.Node{partManager: at.manager, partHost: at.host, partClusters: static, partListener: at.listener}
	for _, part := range parts {
		content, err := commentedNode(part.content, part.comments)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.key, err)
		}
		if err := addMembers(to[part.key], content); err != nil {
			return nil, err
		}
	}
	for _, n := range append(at.path, root, static) {
		n.Style &^= yaml.FlowStyle
	}

	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	// findHost has found a listener in this list. Most files of Envoy do not indent lists, and the encoder does.
	if key, list := stepInto(static, "listeners"); list.Column <= key.Column {
		e.CompactSeqIndent() // lists are not indented, as in the file
	}
	if err := e.Encode(root); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

// readDocument reads the only document of a file, which must be a mapping. Aliases are kept as they are, so a file whose aliases would
// expand to gigabytes costs no more than its length.
func readDocument(config []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(config))
	var document, next yaml.Node
	if err := d.Decode(&document); err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	if err := d.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one YAML document: leave the configuration of Envoy alone in the file")
	}
	if document.Kind != yaml.DocumentNode || document.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("the file is no YAML mapping, as a configuration of Envoy is")
	}
	root := document.Content[0]
	// yaml.v3 keeps the comment at the head of a file beside its root.
	if root.HeadComment == "" {
		root.HeadComment = document.HeadComment
	}
	return root, nil
}

// hostPlace is a virtual host, with the connection manager and the listener that have it, and the lists and mappings on the way.
type hostPlace struct {
	host, manager, listener *yaml.Node

	// path is changed to blocks: a comment cannot be written within brackets.
	path []*yaml.Node
}

// findHost returns the virtual host with a name, or the only one. A file often has several: one that redirects to HTTPS, or one for
// each domain. No choice among them is safe to guess.
func findHost(static *yaml.Node, name string) (found hostPlace, err error) {
	// Names are gathered for the error, because a name in a large file is hard to find.
	var names []string
	err = eachHost(static, func(p hostPlace) {
		at := scalar(p.host, "name")
		if name == "" || name == at {
			found = p
			names = append(names, at)
		}
	})
	switch {
	case err != nil:
		return found, err
	case len(names) == 1:
		return found, nil
	case len(names) > 1 && name == "":
		return found, fmt.Errorf("there are several virtual hosts: choose one with --virtual-host: %s", strings.Join(names, ", "))
	case len(names) > 1:
		return found, fmt.Errorf("there are %d virtual hosts with the name %q: rename all but one", len(names), name)
	case name != "":
		return found, fmt.Errorf("no connection manager has a virtual host with the name %q in its route_config", name)
	}
	return found, errors.New("no listener in static_resources has an HTTP connection manager with a virtual host in its " +
		"route_config; routes from a control plane (rds) are in no file: print the parts without --into")
}

// eachHost calls visit with each virtual host of each connection manager. Listeners without one, such as those of TCP, are passed
// over, and so are connection managers that get their routes from a control plane.
func eachHost(static *yaml.Node, visit func(hostPlace)) error {
	return each(static, "listeners", nil, func(listener *yaml.Node, path []*yaml.Node) error {
		return each(listener, "filter_chains", path, func(chain *yaml.Node, path []*yaml.Node) error {
			return each(chain, "filters", path, func(filter *yaml.Node, path []*yaml.Node) error {
				manager, err := member(filter, "typed_config")
				if err != nil || !strings.HasSuffix(scalar(manager, "@type"), ".HttpConnectionManager") {
					return err
				}
				routes, err := member(manager, "route_config")
				if err != nil || routes == nil {
					return err
				}
				return each(routes, "virtual_hosts", append(path, manager, routes), func(host *yaml.Node, path []*yaml.Node) error {
					visit(hostPlace{host, manager, listener, path})
					return nil
				})
			})
		})
	})
}

// each calls visit with each mapping of the list at a key, and with the nodes on the way to it. A list that is absent has no elements. An
// element that is no mapping is an error, because Envoy would refuse it too, or because it is an alias.
func each(n *yaml.Node, key string, path []*yaml.Node, visit func(n *yaml.Node, path []*yaml.Node) error) error {
	list, err := member(n, key)
	if err != nil || list == nil {
		return err
	}
	for _, element := range list.Content {
		if list.Kind != yaml.SequenceNode || element.Kind != yaml.MappingNode {
			return fmt.Errorf("line %d: %s is no list of mappings; aliases of YAML are not followed here", list.Line, key)
		}
		if err := visit(element, append(slices.Clip(path), list, element)); err != nil {
			return err
		}
	}
	return nil
}

// member returns the value at a key of a mapping, nil if there is none. An alias is refused, because a change of its value would
// change other places too.
func member(n *yaml.Node, key string) (*yaml.Node, error) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	_, value := stepInto(n, key)
	if value != nil && value.Kind == yaml.AliasNode {
		return nil, fmt.Errorf("line %d: %s is an alias of YAML: write its value in full", value.Line, key)
	}
	return value, nil
}

// scalar returns the text at a key, such as a name or a type; empty if there is none. The text of an alias counts as none, so a name that
// is an alias cannot be chosen.
func scalar(n *yaml.Node, key string) string {
	if value, err := member(n, key); err == nil && value != nil {
		return value.Value
	}
	return ""
}

// addMembers adds the elements of the lists of a part to the lists of a mapping, and sets its other values. Keys that the mapping lacks
// are added after its own.
func addMembers(to, part *yaml.Node) error {
	for i := 0; i+1 < len(part.Content); i += 2 {
		key, value := part.Content[i], part.Content[i+1]
		has, err := member(to, key.Value)
		switch {
		case err != nil:
			return err
		case has == nil && key.Value == "http_filters":
			return fmt.Errorf("line %d: the connection manager has no http_filters", to.Line)
		case has == nil:
			to.Content = append(to.Content, key, value)
			continue
		case value.Kind != yaml.SequenceNode:
			// A value that the operator has is replaced in its line, so that its comment stays. The bound of a listener is the only one.
			has.Value = value.Value
			continue
		case has.Tag == "!!null":
			has.Kind, has.Tag = yaml.SequenceNode, ""
		case has.Kind != yaml.SequenceNode:
			return fmt.Errorf("line %d: %s is no list", has.Line, key.Value)
		}
		if err := insert(has, key, value.Content); err != nil {
			return err
		}
	}
	return nil
}

// insert adds elements to a list: filters before the last one, which is the router filter, routes before all, and others after all.
// A filter or a cluster whose name is taken is an error. So the parts cannot be added twice, and a cluster of the operator's own with
// the name of a pool is not hidden. Envoy itself would refuse the second cluster, and accept the second filter.
func insert(list, key *yaml.Node, elements []*yaml.Node) error {
	for _, old := range list.Content {
		for _, added := range elements {
			isUnique := key.Value == "http_filters" || key.Value == "clusters"
			if name := scalar(added, "name"); isUnique && name == scalar(old, "name") {
				return fmt.Errorf("line %d: %s has %s already: remove the parts of an earlier snippet first", old.Line, key.Value, name)
			}
		}
	}

	// Envoy matches routes in their order, and a filter after the router filter never runs.
	at := len(list.Content)
	switch key.Value {
	case "http_filters":
		at = slices.IndexFunc(list.Content, func(n *yaml.Node) bool {
			config, err := member(n, "typed_config")
			return err == nil && strings.HasSuffix(scalar(config, "@type"), "http.router.v3.Router")
		})
		if at < 0 {
			return fmt.Errorf("line %d: http_filters has no envoy.filters.http.router", list.Line)
		}
	case "routes":
		at = 0
	}

	// The list of the file has its own comment, so that of the part goes to the first element.
	if key.HeadComment != "" {
		first := elements[0]
		first.HeadComment = strings.TrimSuffix(key.HeadComment+"\n#\n"+first.HeadComment, "\n#\n")
	}
	list.Content = slices.Insert(list.Content, at, elements...)
	list.Style &^= yaml.FlowStyle
	return nil
}
