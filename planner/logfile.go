package planner

import (
	"fmt"
	"os"

	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/plan/planlog"
)

// LogFile writes observations and plans to a file, for plans that are made again. Its methods belong to one goroutine. Errors are returned
// once for each plan that is lost, and the file is opened again at the next one.
//
//	event                    effect
//	the planner starts       a file that is there is renamed by appending ".1"; the new one begins with the settings
//	the settings change      they are a line
//	the file is full         it is renamed, and the next one begins with the settings, as continued
//	a write fails            the file is renamed, too: a plan that is missing makes those after it others
type LogFile struct {
	path  string
	limit int64
	rates map[string][]float64

	file     *os.File
	size     int64
	begun    bool // a plan was written
	settings *plan.Settings
	line     []byte
}

// LogBytes is the size in bytes at which a planner's log is full.
const LogBytes = 256 << 20

// OpenLog opens a file of at most limit bytes. The forecasts of models begin with rates.
func OpenLog(path string, limit int64, rates map[string][]float64) (*LogFile, error) {
	l := &LogFile{path: path, limit: limit, rates: rates}
	if err := l.replace(); err != nil {
		return nil, err
	}
	return l, nil
}

// replace renames the file that is there, and opens a new one.
func (l *LogFile) replace() error {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
	if info, err := os.Stat(l.path); err == nil && info.Size() > 0 {
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return fmt.Errorf("open plan log (planner.log): %w", err)
		}
	}

	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open plan log (planner.log): %w", err)
	}
	l.file = f
	l.size, l.settings = 0, nil
	return nil
}

// Record writes an observation and its plan.
func (l *LogFile) Record(o *plan.Observation, p *plan.Plan) error {
	if l.file == nil || l.size >= l.limit {
		if err := l.replace(); err != nil {
			return err
		}
	}

	var lines []planlog.Line
	switch {
	case l.settings == nil:
		lines = append(lines, planlog.Line{Begin: &planlog.Begin{Settings: o.Settings, Rates: l.rates, Continued: l.begun}})
	case l.settings != o.Settings:
		lines = append(lines, planlog.Line{Settings: o.Settings})
	}
	lines = append(lines, planlog.Line{Observation: o, Plan: p})

	l.line = l.line[:0]
	for i := range lines {
		var err error
		l.line, err = lines[i].Append(l.line)
		if err != nil {
			return err
		}
	}
	n, err := l.file.Write(l.line)
	l.size += int64(n)
	if err != nil {
		_ = l.file.Close()
		l.file = nil
		return fmt.Errorf("write plan log: %w", err)
	}
	l.settings, l.begun = o.Settings, true
	return nil
}
