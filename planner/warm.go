package planner

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxRates bounds the rates of a file: as many as a week has at one a second.
const maxRates = 7 * 24 * 3600

// ReadRates reads rates of requests per second, one a line, the newest last. Empty lines are left out.
func ReadRates(r io.Reader) ([]float64, error) {
	var out []float64
	lines := bufio.NewScanner(r)
	for number := 1; lines.Scan(); number++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v >= 0 && v <= 1e9) {
			return nil, fmt.Errorf("line %d is %.40q: write a number of requests per second", number, text)
		}
		if len(out) == maxRates {
			return nil, fmt.Errorf("there are more than %d rates", maxRates)
		}
		out = append(out, v)
	}
	return out, lines.Err()
}
