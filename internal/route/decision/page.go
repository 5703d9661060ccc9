package decision

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// pageWidth is the greatest number of characters of a line.
const pageWidth = 100

// page is text for a terminal. Long lines that are written to it are broken between words; tables are not.
type page struct{ text strings.Builder }

// String returns the text.
func (p *page) String() string { return p.text.String() }

// Write appends whole lines. It has no error.
func (p *page) Write(lines []byte) (int, error) {
	for line := range strings.SplitAfterSeq(string(lines), "\n") {
		for utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > pageWidth {
			at := strings.LastIndexByte(string([]rune(line)[:pageWidth+1]), ' ')
			if at < 0 || strings.TrimSpace(line[:at]) == "" { // one word is longer than a line
				break
			}
			p.text.WriteString(line[:at] + "\n")
			line = gap + line[at+1:]
		}
		p.text.WriteString(line)
	}
	return len(lines), nil
}

// writeTables writes rows, whose first two columns are to the left and whose figures are to the right. A table that is too wide becomes
// two: one of the first columns, and one of the others, each with the names of the rows.
func (p *page) writeTables(rows [][]string, first int) {
	width := make([]int, len(rows[0]))
	total := -len(gap)
	for i := range width {
		for _, row := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
		total += width[i] + len(gap)
	}

	all := make([]int, len(width))
	for i := range all {
		all[i] = i
	}
	if total <= pageWidth {
		p.writeColumns(rows, width, all)
		return
	}
	p.writeColumns(rows, width, all[:first])
	p.text.WriteByte('\n')
	p.writeColumns(rows, width, slices.Concat(all[:2], all[first:]))
}

// gap is between two columns, and before the rest of a line that was broken.
const gap = "  "

// writeColumns writes some columns of a table.
func (p *page) writeColumns(rows [][]string, width, columns []int) {
	for _, row := range rows {
		var line strings.Builder
		for _, i := range columns {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(row[i]))
			if i < 2 {
				line.WriteString(row[i] + pad + gap)
			} else {
				line.WriteString(pad + row[i] + gap)
			}
		}
		p.text.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
