// Package cli has the parts of the command line that the commands of a program share: flags in groups with help and
// suggestions, flags that repeat, the flags of the log, and a progress bar.
//
// Help goes to standard output and errors of usage to standard error, both passed in. The package reads no
// environment and ends no process. Values belong to one goroutine.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/config"
)

// ErrUsage reports that the arguments were wrong. The message is already printed; the exit code is 2.
var ErrUsage = errors.New("usage")

// Flags is the flags of one command, with its help. Help prints groups under headings, in the order
// in which they were made; flags outside of a group come last.
type Flags struct {
	*flag.FlagSet
	out, err  io.Writer
	arguments string // such as " [ID]"
	about     string
	groups    []flagGroup
	renamed   map[string]string // names of today by former names
}

// flagGroup is flags under one heading.
type flagGroup struct {
	title string
	names []string
}

// New returns the flags of a command. Help is written to out, and errors of usage to err. name may end with
// the arguments of the command in brackets.
func New(out, err io.Writer, name, about string) *Flags {
	command, arguments, found := strings.Cut(name, " [")
	if found {
		arguments = " [" + arguments
	}

	f := &Flags{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError), out: out, err: err, arguments: arguments, about: about}
	f.SetOutput(io.Discard) // this type writes errors and help
	f.Usage = func() {}
	return f
}

// Group adds the flags that define defines, under a heading.
func (f *Flags) Group(title string, define func()) {
	before := f.names()
	define()
	added := slices.DeleteFunc(f.names(), func(name string) bool { return slices.Contains(before, name) })
	f.groups = append(f.groups, flagGroup{title, added})
}

// Renamed records the former name of a flag, which is no flag any more. The error about it names the flag of today.
func (f *Flags) Renamed(former, today string) {
	if f.renamed == nil {
		f.renamed = map[string]string{}
	}
	f.renamed[former] = today
}

// names returns the names of all flags, sorted.
func (f *Flags) names() []string {
	var all []string
	f.VisitAll(func(o *flag.Flag) { all = append(all, o.Name) })
	return all
}

// Read reads flags and refuses other arguments. It prints help where that is asked for and returns
// flag.ErrHelp; it prints errors and returns ErrUsage.
func (f *Flags) Read(args []string) error {
	if err := f.readFlags(args); err != nil {
		return err
	}
	return f.Refuse(f.Args())
}

// readFlags reads flags up to the first argument that is none. It prints help if it is requested, and
// otherwise the error.
func (f *Flags) readFlags(args []string) error {
	err := f.Parse(args)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, flag.ErrHelp):
		f.printHelp(f.out)
		return err
	}
	return f.UsageError("%s", f.Explain(err))
}

// Refuse reports arguments of a command that accepts none.
func (f *Flags) Refuse(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return f.UsageError("unexpected argument %q", args[0])
}

// UsageError prints the mistake in the arguments and how to get help.
func (f *Flags) UsageError(format string, args ...any) error {
	fmt.Fprintf(f.err, "stator %s: %s\n`stator %s -h` lists the flags.\n", f.Name(), fmt.Sprintf(format, args...), f.Name())
	return ErrUsage
}

// singleDash finds the flag in an error of package flag, which writes it with one dash.
var singleDash = regexp.MustCompile(`( for flag|argument:|defined:) -([a-z0-9-]+)`)

// Explain returns an error of package flag in the form of this program: two dashes, and a suggestion for
// an unknown flag.
func (f *Flags) Explain(err error) string {
	const unknown = "flag provided but not defined: -"
	if name, ok := strings.CutPrefix(err.Error(), unknown); ok {
		text := "unknown flag --" + name
		if today := f.renamed[name]; today != "" {
			return text + "; use --" + today + ", which replaces it"
		}
		if near := config.Nearest(name, f.names()); near != "" {
			text += "; did you mean --" + near + "?"
		}
		return text
	}
	return singleDash.ReplaceAllString(err.Error(), "$1 --$2")
}

// printHelp writes the purpose of the command, and its flags.
func (f *Flags) printHelp(w io.Writer) {
	fmt.Fprintf(w, "Usage: stator %s%s [flags]\n\n%s\n", f.Name(), f.arguments, strings.TrimSpace(f.about))

	grouped := map[string]bool{}
	for _, g := range f.groups {
		fmt.Fprintf(w, "\n%s:\n", g.title)
		for _, name := range g.names {
			printFlag(w, f.Lookup(name))
			grouped[name] = true
		}
	}

	rest := slices.DeleteFunc(f.names(), func(name string) bool { return grouped[name] })
	if len(rest) > 0 {
		fmt.Fprintln(w)
	}
	if len(rest) > 0 && len(f.groups) > 0 {
		fmt.Fprintln(w, "Other:")
	}
	for _, name := range rest {
		printFlag(w, f.Lookup(name))
	}
}

// printFlag writes a flag with two dashes, as Envoy and Kubernetes do.
func printFlag(w io.Writer, o *flag.Flag) {
	kind, text := flag.UnquoteUsage(o)
	head := "  --" + o.Name
	if kind != "" {
		head += " " + strings.ToUpper(kind)
	}
	if o.DefValue != "" && o.DefValue != "false" && o.DefValue != "0" && o.DefValue != "0s" && !strings.Contains(text, "(default") {
		text += fmt.Sprintf(" (default %s)", o.DefValue)
	}
	fmt.Fprintf(w, "%-30s %s\n", head, text)
}

// List is a flag that may be given more than once.
type List []string

// String returns the values, separated by commas.
func (t *List) String() string { return strings.Join(*t, ",") }

// Set adds a value.
func (t *List) Set(v string) error {
	*t = append(*t, v)
	return nil
}

// ReadMixed reads flags that may stand before, between and after other arguments, which it returns.
func (f *Flags) ReadMixed(args []string) (others []string, err error) {
	for {
		if err := f.readFlags(args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			return others, nil
		}
		others = append(others, f.Arg(0))
		args = f.Args()[1:]
	}
}

// ReadWithFile reads flags, and one further argument at most: a file, which the flag of *file names too.
func (f *Flags) ReadWithFile(args []string, file *string) error {
	others, err := f.ReadMixed(args)
	switch {
	case err != nil:
		return err
	case len(others) > 0 && *file != "":
		return f.Refuse(others)
	case len(others) > 1:
		return f.Refuse(others[1:])
	case len(others) == 1:
		*file = others[0]
	}
	return nil
}
