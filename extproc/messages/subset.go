package messages

import (
	"slices"
	"strings"
)

// The metadata by which a proxy in front of the filter, or another filter, allows some endpoints of the pool alone, as the endpoint
// picker protocol has it. Gateways send a list of texts, and some one text with commas.
const (
	namespaceSubset = "envoy.lb.subset_hint"
	keySubset       = "x-gateway-destination-endpoint-subset"
)

// maxSubset bounds the endpoints that are read. A longer list keeps its beginning, so that no endpoint outside of it is picked.
const maxSubset = 4096

// readSubset reads the endpoints that a request may go to, from the metadata of its first message: a Metadata of Envoy.
func (r *Request) readSubset(metadata []byte) error {
	return readEntries(metadata, func(namespace, value []byte) error {
		if string(namespace) != namespaceSubset {
			return nil
		}
		r.Subset = nil // the last value of a repeated key counts
		return r.readSubsetFields(value)
	})
}

// readSubsetFields decodes the Struct of the namespace.
func (r *Request) readSubsetFields(message []byte) error {
	err := readEntries(message, func(key, value []byte) error {
		if string(key) != keySubset {
			return nil
		}
		r.Subset = []string{}
		return r.addEndpoints(value, true)
	})
	slices.Sort(r.Subset)
	return err
}

// addEndpoints adds the endpoints of a Value: a text, or a list of texts if that is allowed. Values of other kinds add none.
func (r *Request) addEndpoints(message []byte, list bool) error {
	w := over(message)
	for w.next() {
		switch w.tag {
		case valueString<<3 | length:
			for endpoint := range strings.SplitSeq(string(w.bytes), ",") {
				endpoint = strings.TrimSpace(endpoint)
				if endpoint != "" && len(r.Subset) < maxSubset {
					r.Subset = append(r.Subset, endpoint)
				}
			}
		case valueList<<3 | length:
			if list {
				w.err = r.addList(w.bytes)
			}
		}
	}
	return w.err
}

// addList adds the endpoints of a ListValue.
func (r *Request) addList(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag == listValues<<3|length {
			w.err = r.addEndpoints(w.bytes, false)
		}
	}
	return w.err
}
