// Command replaydisagg compares simulated fleets whose engines prefill and decode with fleets of as many GPUs whose engines do
// one of both. It prints the tables of docs/benchmarks.md.
package main

import (
	"flag"
	"os"
)

func main() {
	flag.Parse()
	printParameters(os.Stdout)
}
