// Package rivals has the routing policies of other routers, for comparisons in the simulator. They are written from the sources
// of those routers, which each file names with a commit.
//
// A policy sees only what its router would see: the requests that this router itself has sent (Load.Own), the engines' last
// reports, and its own index of prompts. Blocks of prompts are as long as the engines', 64 tokens in the simulator; routers that
// compare characters or shorter blocks match at most one block more.
//
// Policies that keep an index assume that Choose is called once for each request, as in a simulation, and from one goroutine.
package rivals

import "github.com/stator-project/stator/internal/route/pick"

// numbers gives each worker a number, from 0 on. A worker that starts again keeps its number, as a pod keeps its address.
type numbers map[string]int

func (n numbers) numberOf(c *pick.Candidate) int {
	name := c.Rank.Worker.Name
	number, ok := n[name]
	if !ok {
		number = len(n)
		n[name] = number
	}
	return number
}

// reported returns the last report of a candidate's engine: its waiting requests and the share of its cache in use.
func reported(c *pick.Candidate) (waiting int, usage float64) {
	r, _ := c.Rank.Load.LastReport()
	return r.Waiting, r.KVUsage
}

// ownRequests is the number of requests that this router has sent to a candidate and that have not ended.
func ownRequests(c *pick.Candidate) int { return int(c.Rank.Load.Own().Requests) }
