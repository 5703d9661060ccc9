package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/status"
	"github.com/stator-project/stator/internal/top"
)

const topAbout = `Shows a router live in the terminal, read every 2 s: its workers, its queue, and by its newest decisions the tenants, the
decisions and their reasons. It changes nothing.

Keys: 1 to 5 and tab choose a list, arrows a row. enter opens a worker, and then one of its decisions. esc goes back, / filters, s sorts
by the next column, r reverses, q ends.

--once prints the lists as plain text, for scripts. Where --admin-address names several routers, the first one is shown.`

func runTop(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "top", topAbout)
	var admin adminclient.Config
	admin.AddFlags(f.FlagSet)
	once := f.Bool("once", false, "print the lists once, as plain text")
	if err := f.Read(args); err != nil {
		return err
	}

	routers := eachRouter(ctx, admin)
	client, err := adminclient.New(routers[0], status.Timeout)
	if err != nil {
		return err
	}
	reader := &top.Reader{Port: status.Port{Address: routers[0].Address, Admin: client}}
	model := &top.Model{Title: routers[0].Address}
	if len(routers) > 1 {
		model.Title += fmt.Sprintf(" (the first of %d routers)", len(routers))
	}

	if *once {
		d, err := reader.Read(ctx, time.Now())
		if err != nil {
			return err
		}
		model.Read(d, nil)
		fmt.Fprint(env.out, model.Text())
		return nil
	}
	in, isFile := env.in.(*os.File)
	out, _ := env.out.(*os.File)
	if !isFile || !cli.IsTerminal(in) || !cli.IsTerminal(env.out) {
		return errors.New("stator top needs a terminal; --once prints the lists as plain text")
	}
	return top.Run(ctx, in, out, model, reader, cli.HasColour(env.out))
}
