package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/stator-project/stator/internal/cli"
)

const completionAbout = `Prints the completion of commands and flags for a shell, or with man the manual page:

  source <(stator completion bash)
  source <(stator completion zsh)
  stator completion fish | source
  stator completion man > /usr/local/share/man/man1/stator.1`

func runCompletion(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "completion [bash|zsh|fish|man]", completionAbout)
	words, err := f.ReadMixed(args)
	if err != nil {
		return err
	}
	if len(words) != 1 {
		return f.UsageError("name one of bash, zsh, fish and man")
	}

	var pages []cli.Page
	for _, c := range commands() {
		var help strings.Builder
		err := c.run(ctx, environment{out: &help, err: &help, hard: ctx}, []string{"-h"})
		if !errors.Is(err, flag.ErrHelp) && err != nil {
			return fmt.Errorf("help of %s: %w", c.name, err)
		}
		pages = append(pages, cli.ReadPage(c.name, c.summary, help.String()))
	}
	if words[0] == "man" {
		fmt.Fprint(env.out, cli.ManPage("stator", "make a fleet of LLM engines behind Envoy one cache-aware engine", version(), pages))
		return nil
	}
	script, err := cli.Completion(words[0], "stator", pages)
	if err != nil {
		return f.UsageError("%v", err)
	}
	fmt.Fprint(env.out, script)
	return nil
}
