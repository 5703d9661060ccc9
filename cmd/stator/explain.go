package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
)

const explainAbout = `Prints why a request went to its worker: for each worker the cached blocks of the prompt, the load
and the cost. ID is the response header x-stator-decision. Without an ID it explains the newest
decision.`

func runExplain(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "explain [ID]", explainAbout)
	var admin adminclient.Config
	admin.AddFlags(f.FlagSet)
	asJSON := f.Bool("json", false, "print JSON")
	words, err := f.ReadMixed(args)
	if err != nil {
		return err
	}
	if len(words) > 1 {
		return f.Refuse(words[1:])
	}

	id := strings.TrimSpace(strings.Join(words, ""))
	if id == "" {
		id = "latest"
	}

	query := ""
	if *asJSON {
		query = "?format=json"
	}

	text, err := fetchPage(ctx, admin, "/debug/decisions/"+url.PathEscape(id)+query)
	if err != nil {
		return err
	}
	fmt.Fprint(env.out, text)
	return nil
}
