package messages

import (
	"cmp"

	"github.com/stator-project/stator/internal/envoynames"
)

// readMetadata decodes a Metadata. The last value of a repeated key counts, as in every map.
func (e *Entry) readMetadata(message []byte) error {
	var own, lb ids
	err := readEntries(message, func(namespace, value []byte) error {
		switch string(namespace) {
		case envoynames.Namespace:
			own = ids{}
			return e.readNamespace(&own, true, value)
		case envoynames.NamespaceLB:
			e.Picked, e.Served = "", ""
			lb = ids{}
			return e.readNamespace(&lb, false, value)
		}
		return nil
	})
	e.Booking = cmp.Or(own.booking, lb.booking)
	e.Decision = cmp.Or(own.decision, lb.decision)
	if err != nil {
		return err
	}
	return e.readTyped(message)
}

// maxAnswerTokens bounds the tokens that an engine can claim: more than any engine computes for one request.
const maxAnswerTokens = 1 << 24

// readTyped decodes the usage in the typed values of a Metadata.
func (e *Entry) readTyped(message []byte) error {
	w := over(message)
	for w.next() {
		if w.tag != metadataTyped<<3|length {
			continue
		}
		key, value, err := readEntry(w.bytes)
		if err == nil && string(key) == envoynames.NamespaceUsage {
			err = e.readAny(value)
		}
		w.err = err
	}
	return w.err
}

// readAny decodes an Any of a TokenUsage. The content of another type, or one that is no message, counts as none.
func (e *Entry) readAny(message []byte) error {
	var kind, content []byte
	w := over(message)
	for w.next() {
		switch w.tag {
		case anyType<<3 | length:
			kind = w.bytes
		case anyValue<<3 | length:
			content = w.bytes
		}
	}
	e.Counted, e.AnswerTokens = false, 0
	if w.err == nil && string(kind) == envoynames.TypeUsage {
		e.readUsage(content)
	}
	return w.err
}

// readUsage decodes a TokenUsage. The usage of an answer without tokens of its own, such as an embedding, counts as none.
func (e *Entry) readUsage(message []byte) {
	var tokens uint64
	counted := false
	w := over(message)
	for w.next() {
		if w.tag == usageOutputTokens<<3|length {
			counted = true
			tokens, w.err = readWrapped(w.bytes, tokens)
		}
	}
	if w.err == nil && counted {
		e.Counted = true
		e.AnswerTokens = min(tokens, maxAnswerTokens)
	}
}

// ids are the ids in one namespace.
type ids struct{ booking, decision string }

// readNamespace decodes the Struct of a namespace: Stator's own, or the load balancer's.
func (e *Entry) readNamespace(found *ids, own bool, message []byte) error {
	return readEntries(message, func(key, value []byte) (err error) {
		var into *string
		switch k := string(key); {
		case own && k == envoynames.Booking, !own && k == envoynames.BookingLB:
			into = &found.booking
		case own && k == envoynames.Decision, !own && k == envoynames.DecisionLB:
			into = &found.decision
		case !own && k == envoynames.HeaderDestination:
			into = &e.Picked
		case !own && k == envoynames.HeaderDestinationServed:
			into = &e.Served
		default:
			return nil
		}
		*into, err = readText(value)
		return err
	})
}
