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

--once prints the lists as plain text, for scripts. Several routers, which --admin-address names with commas or by a DNS name, are shown as
one: decisions, queues and figures of workers are those of all, and times at the top those of the slowest.`

func runTop(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "top", topAbout)
	var admin adminclient.Config
	admin.AddFlags(f.FlagSet)
	once := f.Bool("once", false, "print the lists once, as plain text")
	if err := f.Read(args); err != nil {
		return err
	}

	routers := eachRouter(ctx, admin)
	var readers top.Readers
	for _, router := range routers {
		client, err := adminclient.New(router, status.Timeout)
		if err != nil {
			return err
		}
		readers = append(readers, &top.Reader{Port: status.Port{Address: router.Address, Admin: client}})
	}
	model := &top.Model{Title: routers[0].Address}
	if len(routers) > 1 {
		model.Title = fmt.Sprintf("%d routers", len(routers))
	}

	if *once {
		d, err := readers.Read(ctx, time.Now())
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
	return top.Run(ctx, in, out, model, readers, cli.HasColour(env.out))
}
