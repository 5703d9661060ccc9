package handoff

import (
	"unicode/utf8"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// Envelope has the values that the router needs of a body that it does not parse otherwise, read in one pass.
type Envelope struct {
	// Model is the string under "model"; empty if it is missing, no string, or longer than 256 bytes. It may alias the body.
	Model string
	// IsSingle means that the request asks for one answer: an engine transfers one prompt for one answer.
	IsSingle bool
	// Clean is the body without the members of transfers, in new memory; nil if it has none.
	Clean []byte
}

// Read reads the envelope of a body of the shape of an endpoint. It returns an error for a body that is not one JSON object in UTF-8
// without a byte order mark, or that nests too deeply: an engine might read members that are not found here. Python's decoder, for
// example, accepts UTF-16 and byte order marks. It calls see for each member at the top level and the text of its value, unless see is nil.
func Read(body []byte, shape Endpoint, see func(name string, value []byte)) (Envelope, *openai.Error) {
	e := Envelope{IsSingle: true}
	found, err := readMembers(body, func(name string, value []byte) {
		switch {
		case name == "model": // of several the last one counts
			e.Model = openai.ShortString(value)
		case name == "sampling_params" && shape == Generate:
			e.IsSingle = asksForOne(value)
		}
		if see != nil {
			see(name, value)
		}
	})
	if err != nil {
		return Envelope{}, err
	}
	if found {
		e.Clean = stripped(body)
	}
	return e, nil
}

// readMembers reports whether a body has members of transfers, and calls see for each member, unless see is nil.
func readMembers(body []byte, see func(name string, value []byte)) (found bool, err *openai.Error) {
	if !isObject(body) || !utf8.Valid(body) {
		return false, openai.Invalid("", "invalid_json",
			"The request body is not a JSON object in UTF-8 without a byte order mark. Send one.")
	}
	err = openai.EachMember(body, func(name string, from, to int) {
		found = found || isTransfer(name, body[from:to], holderLevels)
		if see != nil {
			see(name, openai.MemberValue(body[from:to]))
		}
	})
	return found, err
}

// asksForOne reports whether sampling parameters ask for one answer, which is the default. A value that is no object is left to the
// engine.
func asksForOne(sampling []byte) bool {
	if !isObject(sampling) {
		return true
	}
	values, err := members(sampling, "n")
	return err != nil || isNull(values["n"]) || isNumber(values["n"], 1, 1)
}
