package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Page is the help of one command, as a program prints it.
type Page struct {
	Command string // such as up
	Summary string
	Usage   string   // the line behind "Usage: "
	About   []string // lines
	Options []Option
}

// Option is one flag of a page. Value is the kind of its value in capitals; empty for a switch.
type Option struct {
	Name, Value, Usage string
}

// ReadPage reads the help that [Flags] has printed.
func ReadPage(command, summary, help string) Page {
	p := Page{Command: command, Summary: summary}
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		name, isOption := strings.CutPrefix(line, "  --")
		usage, isUsage := strings.CutPrefix(line, "Usage: ")
		switch {
		case isOption:
			p.Options = append(p.Options, readOption(name))
		case isUsage && p.Usage == "":
			p.Usage = usage
		case len(p.Options) == 0 && !strings.HasSuffix(line, ":"): // a heading of flags ends with a colon
			p.About = append(p.About, line)
		}
	}
	for len(p.About) > 0 && p.About[0] == "" {
		p.About = p.About[1:]
	}
	for len(p.About) > 0 && p.About[len(p.About)-1] == "" {
		p.About = p.About[:len(p.About)-1]
	}
	return p
}

// readOption reads a line such as "listen-address ADDRESS  address of the server".
func readOption(line string) Option {
	name, rest, _ := strings.Cut(line, " ")
	o := Option{Name: name}
	value, usage, _ := strings.Cut(rest, " ")
	if value != "" && value == strings.ToUpper(value) {
		o.Value, rest = value, usage
	}
	o.Usage = strings.TrimSpace(rest)
	return o
}

// shells write the completion of a shell.
var shells = map[string]func(b *strings.Builder, program string, pages []Page){"bash": bash, "zsh": zsh, "fish": fish}

// Completion returns the script that completes a program's commands and flags in bash, zsh or fish.
func Completion(shell, program string, pages []Page) (string, error) {
	write := shells[shell]
	if write == nil {
		return "", fmt.Errorf("there is no completion for %q: use bash, zsh or fish", shell)
	}
	var b strings.Builder
	write(&b, program, pages)
	return b.String(), nil
}

// names returns the commands of all pages.
func names(pages []Page) string {
	var all []string
	for i := range pages {
		all = append(all, pages[i].Command)
	}
	return strings.Join(all, " ")
}

// flags returns the flags of a page.
func flags(p *Page) string {
	var all []string
	for _, o := range p.Options {
		all = append(all, "--"+o.Name)
	}
	return strings.Join(all, " ")
}

func bash(b *strings.Builder, program string, pages []Page) {
	fmt.Fprintf(b, "# Completion of %s for bash. Load it with: source <(%[1]s completion bash)\n_%[1]s() {\n"+
		"  local word=\"${COMP_WORDS[COMP_CWORD]}\" flags=\n  COMPREPLY=()\n"+
		"  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W \"help %s\" -- \"$word\"))\n    return\n  fi\n"+
		"  case \"${COMP_WORDS[1]}\" in\n    help) COMPREPLY=($(compgen -W \"%[2]s\" -- \"$word\")); return ;;\n", program, names(pages))
	for i := range pages {
		fmt.Fprintf(b, "    %s) flags=\"%s\" ;;\n", pages[i].Command, flags(&pages[i]))
	}
	fmt.Fprintf(b, "  esac\n  case \"$word\" in\n    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) ;;\n"+
		"    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n  esac\n}\ncomplete -o filenames -F _%[1]s %[1]s\n", program)
}

func zsh(b *strings.Builder, program string, pages []Page) {
	quote := strings.NewReplacer("'", "'\\''", "[", "\\[", "]", "\\]", ":", "\\:")
	fmt.Fprintf(b, "#compdef %[1]s\n# Completion of %[1]s for zsh. Load it with: source <(%[1]s completion zsh)\n"+
		"_%[1]s() {\n  local -a commands=(\n", program)
	for i := range pages {
		fmt.Fprintf(b, "    '%s:%s'\n", pages[i].Command, quote.Replace(pages[i].Summary))
	}
	fmt.Fprint(b, "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n  case $words[2] in\n"+
		"    help) _describe command commands ;;\n")
	for i := range pages {
		fmt.Fprintf(b, "    %s) _arguments", pages[i].Command)
		for _, o := range pages[i].Options {
			value := ""
			if o.Value != "" {
				value = ":" + strings.ToLower(o.Value) + ":_files"
			}
			fmt.Fprintf(b, " '--%s[%s]%s'", o.Name, quote.Replace(o.Usage), value)
		}
		fmt.Fprint(b, " '*:file:_files' ;;\n")
	}
	fmt.Fprintf(b, "  esac\n}\ncompdef _%[1]s %[1]s\n", program)
}

func fish(b *strings.Builder, program string, pages []Page) {
	quote := strings.NewReplacer("\\", "\\\\", "'", "\\'")
	fmt.Fprintf(b, "# Completion of %[1]s for fish. Load it with: %[1]s completion fish | source\n", program)
	for i := range pages {
		p := &pages[i]
		fmt.Fprintf(b, "complete -c %s -n __fish_use_subcommand -f -a %s -d '%s'\n", program, p.Command, quote.Replace(p.Summary))
		for _, o := range p.Options {
			value := ""
			if o.Value != "" {
				value = " -r"
			}
			fmt.Fprintf(b, "complete -c %s -n '__fish_seen_subcommand_from %s' -l %s%s -d '%s'\n", program, p.Command, o.Name, value,
				quote.Replace(o.Usage))
		}
	}
}

// ManPage returns the manual page of a program in roff.
func ManPage(program, summary, release string, pages []Page) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %[3]s\n.I COMMAND\n[flags]\n.SH COMMANDS\n",
		strings.ToUpper(program), roff(release), program, roff(summary))
	for i := range pages {
		p := &pages[i]
		fmt.Fprintf(&b, ".SS %s\n%s\n.PP\n", roff(p.Usage), roff(p.Summary))
		for _, line := range p.About {
			if line == "" {
				line = ".PP"
			} else {
				line = roff(line)
			}
			fmt.Fprintln(&b, line)
		}
		for _, o := range p.Options {
			fmt.Fprintf(&b, ".TP\n.B \\-\\-%s %s\n%s\n", roff(o.Name), roff(o.Value), roff(o.Usage))
		}
	}
	b.WriteString(".SH EXIT STATUS\n0 success, 1 failure, 2 wrong arguments.\n")
	return b.String()
}

// roff returns a text without the special meanings of roff.
func roff(text string) string {
	text = strings.NewReplacer("\\", "\\e", "-", "\\-").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = "\\&" + text
	}

	var b strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\[u%04X]", r) // groff reads one byte a character
		}
	}
	return b.String()
}
