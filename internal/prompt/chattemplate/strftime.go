package chattemplate

import (
	"fmt"
	"strings"
	"time"
)

// strftime imitates Python's datetime.strftime in the C locale. An unknown directive stays as it is.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		if format[i] == '-' && i+1 < len(format) { // %-d is %d without padding, an extension of glibc
			if s, ok := formatDirective(t, format[i+1]); ok {
				b.WriteString(trimPadding(s))
				i++
				continue
			}
		}
		if s, ok := formatDirective(t, format[i]); ok {
			b.WriteString(s)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(format[i])
	}

	return b.String()
}

// trimPadding removes leading zeros and spaces, and leaves at least one digit.
func trimPadding(s string) string {
	if out := strings.TrimLeft(s, "0 "); out != "" {
		return out
	}
	return "0"
}

// layouts maps directives to layouts of Go's time package.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'j': "002",
	'm': "01", 'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06",
	'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'r': "03:04:05 PM",
}

// formatDirective formats t by one directive. It returns false for an unknown one.
func formatDirective(t time.Time, c byte) (string, bool) {
	if layout, ok := layouts[c]; ok {
		return t.Format(layout), true
	}
	year, week := t.ISOWeek()
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'C':
		return fmt.Sprintf("%02d", t.Year()/100), true
	case 'G':
		return fmt.Sprint(year), true
	case 'V':
		return fmt.Sprintf("%02d", week), true
	case 'U':
		return fmt.Sprintf("%02d", (t.YearDay()+6-int(t.Weekday()))/7), true
	case 'W':
		return fmt.Sprintf("%02d", (t.YearDay()+6-(int(t.Weekday())+6)%7)/7), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'k':
		return fmt.Sprintf("%2d", t.Hour()), true
	case 'l':
		return fmt.Sprintf("%2d", (t.Hour()+11)%12+1), true
	case 'z', 'Z': // empty, because the time has no zone
		return "", true
	}

	return "", false
}
