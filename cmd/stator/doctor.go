package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stator-project/stator/internal/config"
)

const doctorAbout = `Looks at a running fleet and says what is wrong, why it matters and what to do. It asks the
router's admin port, and for each worker its HTTP server and its event sockets; it changes
nothing and sends no prompts. Exit status 0 says that all is well, 1 that it is not.`

func runDoctor(ctx context.Context, env environment, args []string) error {
	f := flags(env, "doctor", doctorAbout)
	file := f.String("f", "", "configuration `file` of the router; without one, that of a plain `stator up`")
	admin := f.String("admin", "127.0.0.1:8081", "admin `address` of the router")
	wait := f.Duration("wait", 3*time.Second, "how long to listen for events, and to watch whether knowledge moves")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	if *wait <= 0 {
		fmt.Fprintln(env.err, "stator doctor: --wait must be positive")
		return errUsage
	}
	cfg, err := config.Parse(defaultConfig)
	if *file != "" {
		cfg, err = readConfig(*file)
	}
	if err != nil {
		return err
	}
	found := examine(observe(ctx, cfg, *admin, *wait))
	if err := printFindings(env.out, found, *asJSON); err != nil {
		return err
	}
	switch len(found.Findings) {
	case 0:
		return nil
	case 1:
		return errors.New("one finding")
	}
	return fmt.Errorf("%d findings", len(found.Findings))
}

// diagnosis is what doctor prints.
type diagnosis struct {
	Checks   int       `json:"checks"`
	Workers  int       `json:"workers"`
	Findings []finding `json:"findings"`
}

// finding is one thing that is wrong: a line each for what it is, why it matters and what to do.
type finding struct {
	Check   string `json:"check"`
	Subject string `json:"subject"`
	What    string `json:"what"`
	Why     string `json:"why"`
	Remedy  string `json:"remedy"`
}

func printFindings(w io.Writer, d diagnosis, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(d)
	}
	for _, f := range d.Findings {
		fmt.Fprintf(w, "%s: %s\n  why: %s\n  do:  %s\n", f.Subject, f.What, f.Why, f.Remedy)
	}
	if len(d.Findings) == 0 {
		fmt.Fprintf(w, "%d checks of the router and %d workers: all is well\n", d.Checks, d.Workers)
	}
	return nil
}

// examine makes every check.
func examine(o *observation) diagnosis {
	d := diagnosis{Checks: len(checks), Workers: len(o.workers), Findings: []finding{}}
	for _, c := range checks {
		for _, f := range c.run(o) {
			f.Check = c.name
			d.Findings = append(d.Findings, f)
		}
	}
	return d
}
