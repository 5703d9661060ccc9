package main

import (
	"fmt"
	"github.com/stator-project/stator/internal/cli"
	"io"
	"log/slog"
)

// logFlags are the flags of every command that logs.
type logFlags struct{ level, format string }

func addLogFlags(f *cli.Flags) *logFlags {
	l := &logFlags{}
	f.StringVar(&l.level, "log-level", "info", "debug (one line per request), info, warn or error")
	f.StringVar(&l.format, "log-format", "text", "text or json")
	return l
}

// logger returns the logger that the flags describe.
func (l *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level is %q: use debug, info, warn or error", l.level)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	default:
		return nil, fmt.Errorf("--log-format is %q: use text or json", l.format)
	}
}
