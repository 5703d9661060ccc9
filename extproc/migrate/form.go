package migrate

import (
	"bytes"

	"github.com/stator-project/stator/internal/jsonscan"
)

// maxForm bounds the event whose form is kept, in bytes.
const maxForm = 1 << 10

// form is the last event with a text and ids. Most engines change nothing but these two from event to event. An event of the same form is
// read in a fifth of the time, with the same result.
type form struct {
	event   []byte
	text    span // of the text in event
	ids     span // of the list of ids, which follows it
	added   span // of the member that has the list, in the JSON text
	at      int  // where that begins
	changes int  // how often the form was kept
}

// maxChanges bounds how often a form is kept, for engines whose events differ.
const maxChanges = 8

// keep keeps the form of an event that read has read, if it has one.
func (f *form) keep(raw []byte, e *event) {
	if len(raw) > maxForm || f.changes == maxChanges || e.text == nil || e.ids == nil || e.textAt > e.idsAt || len(e.added) != 1 ||
		e.choices != 1 || e.failed || e.other || e.usage || e.finish != nil {
		return
	}
	f.changes++
	f.event = append(f.event[:0], raw...)
	f.text = span{e.at + e.textAt, e.at + e.textAt + len(e.text)}
	f.ids = span{e.at + e.idsAt, e.at + e.idsAt + len(e.ids)}
	f.added = e.added[0]
	f.at = e.at
}

// read reads an event that has the form into e: its text, its ids, and the member that has them. It returns false for any other event.
func (f *form) read(raw []byte, e *event) bool {
	before := f.event[:f.text.from]
	if len(before) == 0 || !bytes.HasPrefix(raw, before) {
		return false
	}
	n, _, ok := jsonscan.TextLength(raw[len(before):])
	between, after := f.event[f.text.to:f.ids.from], f.event[f.ids.to:]
	text := span{len(before), len(before) + n}
	ids := span{text.to + len(between), len(raw) - len(after)}
	if !ok || ids.from >= ids.to || !bytes.HasPrefix(raw[text.to:], between) || !bytes.Equal(raw[ids.to:], after) || !isList(ids.of(raw)) {
		return false
	}

	shift := text.to - f.text.to
	added := append(e.added[:0], span{f.added.from + shift, f.added.to + ids.to - f.ids.to})
	*e = event{at: f.at, choices: 1, text: text.of(raw), ids: ids.of(raw), added: added, head: e.head[:0], rest: e.rest[:0]}
	return true
}

// isList reports whether a text is a JSON list of whole numbers without spaces.
func isList(b []byte) bool {
	list := bytes.TrimSuffix(bytes.TrimPrefix(b, []byte{'['}), []byte{']'})
	if len(list) != len(b)-2 {
		return false
	}
	digits := 0
	for i, c := range list {
		switch {
		case c == ',' && digits > 0:
			digits = 0
		case c-'0' < 10 && (digits != 1 || list[i-1] != '0'):
			digits++
		default:
			return false
		}
	}
	return digits > 0
}
