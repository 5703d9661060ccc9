package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
)

const explainAbout = `Prints why a request went to its worker: for each worker the cached blocks of the prompt, the load
and the cost. ID is the response header x-stator-decision. Without an ID it explains the newest
decision.

With several routers, --admin-address is a list with commas, or a DNS name that stands for all its
addresses, such as that of a headless Service. The router that made the decision is found.

--dry-run prints the decision that a request would get now, from its body in a file. It is not sent,
and changes nothing. --send sends it through the gateway, too, and prints the cached tokens that the
decision promised beside the ones that the engine found.`

func runExplain(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "explain [ID]", explainAbout)
	var admin adminclient.Config
	admin.AddFlags(f.FlagSet)
	asJSON := f.Bool("json", false, "print JSON")
	var try dryRun
	try.addFlags(f)
	words, err := f.ReadMixed(args)
	if err != nil {
		return err
	}
	if len(words) > 1 {
		return f.Refuse(words[1:])
	}

	if try.wanted {
		return try.run(ctx, f, env, eachRouter(ctx, admin)[0], words, *asJSON)
	}
	path := "/debug/decisions/latest"
	id := strings.TrimSpace(strings.Join(words, ""))
	if id != "" {
		path = "/debug/decisions/" + url.PathEscape(id)
	}
	query := ""
	if *asJSON {
		query = "?format=json"
	}
	routers := eachRouter(ctx, admin)
	if id == "" && len(routers) > 1 {
		routers = newestFirst(ctx, routers, path)
	}

	var failures []error
	for _, router := range routers {
		text, err := fetchPage(ctx, router, path+query)
		if err == nil {
			fmt.Fprint(env.out, text)
			return nil
		}
		if len(routers) > 1 {
			err = fmt.Errorf("%s: %w", router.Address, err)
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// maxRouters bounds the routers that are asked, because a DNS server names them.
const maxRouters = 64

// eachRouter returns the admin ports that an address names: those of a list, and all IPs of a name. A name with https:// stays a name,
// because the certificate has it.
func eachRouter(ctx context.Context, admin adminclient.Config) (all []adminclient.Config) {
	for address := range strings.SplitSeq(admin.Address, ",") {
		one := admin
		one.Address = strings.TrimSpace(address)
		host, port, err := net.SplitHostPort(one.Address)
		if err != nil || net.ParseIP(host) != nil || strings.Contains(one.Address, "://") {
			all = append(all, one)
			continue
		}

		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil || len(ips) == 1 {
			all = append(all, one) // whose error says why
			continue
		}
		for _, ip := range ips {
			one.Address = net.JoinHostPort(ip, port)
			all = append(all, one)
		}
	}
	return all[:min(len(all), maxRouters)]
}

// withParts returns the admin ports of routers and of other processes, which are asked in the same way.
func withParts(routers []adminclient.Config, parts []string) []adminclient.Config {
	all := slices.Clone(routers)
	for _, address := range parts {
		port := routers[0]
		port.Address = address
		all = append(all, port)
	}
	return all
}

// newestFirst puts the router with the newest decision first.
func newestFirst(ctx context.Context, routers []adminclient.Config, path string) []adminclient.Config {
	var newest time.Time
	best := 0
	for i, router := range routers {
		text, err := fetchPage(ctx, router, path+"?format=json")
		var page struct {
			At time.Time `json:"at"`
		}
		if err == nil && json.Unmarshal([]byte(text), &page) == nil && page.At.After(newest) {
			newest, best = page.At, i
		}
	}
	routers[0], routers[best] = routers[best], routers[0]
	return routers
}
