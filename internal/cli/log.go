package cli

import (
	"fmt"
	"io"
	"log"
	"log/slog"
)

// LogFlags are the flags of every command that logs. Create them with [AddLogFlags].
type LogFlags struct{ level, format string }

// AddLogFlags adds the flags to f.
func AddLogFlags(f *Flags) *LogFlags {
	l := &LogFlags{}
	f.StringVar(&l.level, "log-level", "info", "debug (one line per request), info, warn or error")
	f.StringVar(&l.format, "log-format", "text", "text or json")
	return l
}

// Logger returns the logger that the flags describe. It writes to w, and so does the standard logger from then on, at level debug.
func (l *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level is %q: use debug, info, warn or error", l.level)
	}
	opts := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch l.format {
	case "text":
		handler = slog.NewTextHandler(w, opts)
	case "json":
		handler = slog.NewJSONHandler(w, opts)
	default:
		return nil, fmt.Errorf("--log-format is %q: use text or json", l.format)
	}

	// Package net/http writes lines about answers of engines that no one asked for to the standard logger.
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(handler, slog.LevelDebug).Writer())
	return slog.New(handler), nil
}
