package cli

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// examplePages are the help of two commands, with texts that shells and roff could take for their own.
func examplePages() []Page {
	var help bytes.Buffer
	f := New(&help, &help, "run [FILE]", ".Runs it's \\own $(touch pwned) `touch pwned`.\n\nA second paragraph: with a colon.")
	f.Group("A group", func() { f.String("at", "", "`address` with 'quotes', [brackets]: and $(touch pwned)") })
	f.Bool("fast", false, "be fast")
	_ = f.Read([]string{"-h"}) // it is flag.ErrHelp
	return []Page{ReadPage("run", "run it's $(touch pwned)", help.String()), {Command: "version", Summary: "print the version"}}
}

// TestReadPage reads the help that a command prints.
func TestReadPage(t *testing.T) {
	p := examplePages()[0]
	if p.Usage != "stator run [FILE] [flags]" || len(p.About) != 3 || !strings.HasPrefix(p.About[0], ".Runs") {
		t.Errorf("usage %q, about %q", p.Usage, p.About)
	}
	want := []Option{{"at", "ADDRESS", "address with 'quotes', [brackets]: and $(touch pwned)"}, {"fast", "", "be fast"}}
	if !slices.Equal(p.Options, want) {
		t.Errorf("options %q, want %q", p.Options, want)
	}
}

// TestCompletion loads the script in bash, and completes with it. Other shells check theirs where they are installed.
func TestCompletion(t *testing.T) {
	script, err := Completion("bash", "stator", examplePages())
	if err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"stator ver": "version", "stator run --f": "--fast", "stator run --": "--at --fast", "stator help r": "run", "stator version --": "",
	} {
		fields := strings.Fields(words)
		run := script + "\nCOMP_WORDS=(" + words + "); COMP_CWORD=" + string(rune('0'+len(fields)-1)) + "; _stator; echo \"${COMPREPLY[*]}\"\n"
		cmd := exec.Command("bash", "-c", run)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%q is completed by %q, %v, want %q", words, out, err, want)
		}
	}
	for _, shell := range []string{"zsh", "fish"} {
		script, err := Completion(shell, "stator", examplePages())
		if err != nil || !strings.Contains(script, "fast") {
			t.Errorf("%s: %v\n%s", shell, err, script)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("the syntax of the script is not checked: %s is not installed", shell)
			continue
		}
		check := exec.Command(path, "-n")
		check.Stdin = strings.NewReader(script)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s refuses the script: %v\n%s", shell, err, out)
		}
	}
	if _, err := Completion("tcsh", "stator", nil); err == nil || !strings.Contains(err.Error(), "bash, zsh or fish") {
		t.Errorf("another shell: %v", err)
	}
}

// TestManPage checks that no text of a command is taken for a request of roff.
func TestManPage(t *testing.T) {
	page := ManPage("stator", "route requests", "v1", examplePages())
	for _, want := range []string{".TH STATOR 1", "\\&.Runs it's \\eown", ".B \\-\\-at ADDRESS\n", "A second paragraph: with a colon."} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in\n%s", want, page)
		}
	}
}
