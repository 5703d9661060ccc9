package messages

import (
	"bytes"
	"strconv"

	"github.com/stator-project/stator/internal/envoynames"
)

// attributeUpstream is Envoy's attribute with the address of the worker that was reached.
const attributeUpstream = "upstream.address"

// readResponse decodes the HttpHeaders of a response. Two settings of the filter name the worker that answered, and
// either suffices: the attribute, and the load balancer's metadata.
func (r *Request) readResponse(content, attributes, metadata []byte) error {
	if err := r.readHeaders(content, r.readResponseHeader); err != nil {
		return err
	}

	_, filter, err := readEntry(attributes)
	if err == nil {
		r.Served, err = textOf(filter, attributeUpstream)
	}
	if err != nil || r.Served != "" {
		return err
	}
	r.Served, err = servedOf(metadata)
	return err
}

// readResponseHeader stores a header of the response.
func (r *Request) readResponseHeader(key, value []byte) {
	switch string(key) {
	case ":status":
		n, _ := strconv.ParseUint(string(value), 10, 16) // 0 means no status
		r.Status = uint32(n)
	case "content-type":
		r.EventStream = bytes.HasPrefix(value, []byte("text/event-stream"))
	}
}

// servedOf returns the address in the metadata of the load balancer: a Metadata of Envoy.
func servedOf(metadata []byte) (address string, err error) {
	err = readEntries(metadata, func(namespace, value []byte) (err error) {
		if string(namespace) == envoynames.NamespaceLB {
			address, err = textOf(value, envoynames.HeaderDestinationServed)
		}
		return err
	})
	return address, err
}
