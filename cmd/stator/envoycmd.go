package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/xds"
)

const envoyAbout = `Prints the bootstrap of an Envoy that you run: node, admin server and the xds cluster. Everything
else comes from ` + "`stator xds`" + `.`

func runEnvoy(_ context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "envoy bootstrap", envoyAbout)
	var b xds.BootstrapSettings
	f.StringVar(&b.NodeID, "node-id", nodeID, "`name` of the Envoy, different for each: bookings of an Envoy that dies are found by it")
	f.StringVar(&b.Admin, "admin-address", "127.0.0.1:9901", "`address` of Envoy's admin server, ip:port or unix:///path")
	f.IntVar(&b.MaxConnections, "max-connections", 10_000, "bound on the connections of clients; 0 is none")
	f.Int64Var(&b.MaxHeapBytes, "max-heap-bytes", 0, "bound on Envoy's heap in bytes, near which it answers 503; 0 is none")
	f.StringVar(&b.XDS, "xds-address", "127.0.0.1:9003", "`address` of stator xds, ip:port or unix:///path")
	if len(args) == 0 || args[0] != "bootstrap" {
		if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
			return f.Read(args)
		}
		fmt.Fprintln(env.err, "stator envoy: use `stator envoy bootstrap`")
		return cli.ErrUsage
	}
	if err := f.Read(args[1:]); err != nil {
		return err
	}

	text, err := xds.Bootstrap(b)
	if err != nil {
		return err
	}

	// The protobuf library varies the white space of JSON between builds, so it is indented again.
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return fmt.Errorf("format bootstrap: %w", err)
	}
	_, err = fmt.Fprintf(env.out, "%s\n", &indented)
	return err
}
