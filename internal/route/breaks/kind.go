package breaks

import (
	"bytes"
	"iter"
	"slices"
	"strings"
)

// Kind is the kind of a text.
type Kind uint8

// The kinds. A Hash is any identifier of letters and digits that is no UUID.
const (
	Other Kind = iota
	Date
	Time
	UUID
	Hash
	Number
	kinds
)

// String returns the name of the kind as metrics have it.
func (k Kind) String() string {
	return [kinds]string{"other", "date", "time", "uuid", "hash", "number"}[k]
}

// isLike reports whether texts of two kinds may be one text at different times: some identifiers have digits alone.
func (k Kind) isLike(other Kind) bool {
	return k == other || k == Hash && other == Number || k == Number && other == Hash
}

// word is a part of a line, and the byte at which it begins.
type word struct {
	text []byte
	at   int
}

// isBetween reports whether a byte separates words. Dates, times and UUIDs are one word each, and so are versions.
func isBetween(b byte) bool { return b <= ' ' || strings.IndexByte(`,;="'()[]{}<>|`, b) >= 0 }

// words returns the words of a line.
func words(line []byte) iter.Seq[word] {
	return func(yield func(word) bool) {
		for at := 0; at < len(line); {
			if isBetween(line[at]) {
				at++
				continue
			}
			end := at + 1
			for end < len(line) && !isBetween(line[end]) {
				end++
			}
			if !yield(word{line[at:end], at}) {
				return
			}
			at = end
		}
	}
}

// leastHash is the least length of an identifier. A shorter mix of letters and digits is often a name.
const leastHash = 5

// kindOf returns the kind of a word in a line. A number beside the name of a month or a day is a part of a date.
func kindOf(text, line []byte) Kind {
	text = bytes.Trim(text, ".:-")
	var digits, letters, dashes, colons, others int
	for _, b := range text {
		switch {
		case '0' <= b && b <= '9':
			digits++
		case 'a' <= b|0x20 && b|0x20 <= 'z':
			letters++
		case b == '-' || b == '/':
			dashes++
		case b == ':':
			colons++
		case b != '.' && b != '_' && b != '+' && b != '#' && b != '%' && b != '$':
			others++
		}
	}

	switch {
	case others > 0:
		return Other
	case isUUID(text):
		return UUID
	case isDay(text):
		return Date
	case digits == 0:
		return Other
	case colons > 0 && digits >= 3 && letters <= len("TZ"):
		return Time
	case dashes == 2 && letters == 0 && digits >= len("1-1-26"):
		return Date
	case letters == 0 && slices.ContainsFunc(slices.Collect(words(line)), func(w word) bool { return isDay(w.text) }):
		return Date
	case letters == 0:
		return Number
	case len(text) >= leastHash:
		return Hash
	}
	return Other
}

// isUUID reports whether a text is 32 hexadecimal digits in the groups of a UUID.
func isUUID(text []byte) bool {
	if len(text) != len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
		return false
	}
	for i, b := range text {
		isDash := i == 8 || i == 13 || i == 18 || i == 23
		isHex := '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'f'
		if isDash != (b == '-') || !isDash && !isHex {
			return false
		}
	}
	return true
}

// isDay reports whether a text names a month or a day of the week, in English and with three letters or more.
func isDay(text []byte) bool {
	text = bytes.TrimRight(text, ".:")
	if len(text) < len("Mon") {
		return false
	}
	return slices.ContainsFunc(days, func(day string) bool {
		return len(text) <= len(day) && bytes.EqualFold(text, []byte(day[:len(text)]))
	})
}

var days = []string{
	"january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december",
	"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
}
