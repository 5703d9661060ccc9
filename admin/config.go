package admin

import (
	"strings"
	"time"

	"github.com/stator-project/stator/internal/configfile"
)

// Config is /debug/config.
type Config struct {
	Path string `json:"path"`
	// Digest is the first 16 hexadecimal digits of the SHA-256 of the content in force.
	Digest  string    `json:"digest"`
	Applied time.Time `json:"applied"`
	// Error is the reason why the present content is not in force; empty if it is.
	Error string `json:"error,omitempty"`
	// Pending are the keys whose new values wait for a restart of the process.
	Pending []string `json:"pending_restart"`
}

func viewConfig(s configfile.Status) Config {
	v := Config{Path: s.Path, Digest: s.Digest, Applied: s.Applied.UTC(), Pending: s.Pending}
	if v.Pending == nil {
		v.Pending = []string{}
	}
	if s.Err != nil {
		v.Error = s.Err.Error()
	}
	return v
}

// String is the page for people.
func (v Config) String() string {
	text := table("FILE\tDIGEST\tIN FORCE SINCE", func(row func(...any)) { row(v.Path, v.Digest, v.Applied.Format(time.RFC3339)) })
	if v.Error != "" {
		text += "\nthe present content is not in force: " + v.Error + "\n"
	}
	if len(v.Pending) > 0 {
		text += "\na restart of this process is needed for:\n  " + strings.Join(v.Pending, "\n  ") + "\n"
	}
	return text
}
