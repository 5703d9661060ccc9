// Package bus connects the processes of one cluster by NATS, and by NATS alone.
//
// Workers are leases in a key-value bucket. An agent writes the lease of each of its workers every third of its lifetime and
// after every reconnection, so a living worker is back in the fleet after any pause. A lease belongs to one process: it is
// claimed, renewed and deleted by compare-and-set on its revision, one operation each, and a second claimant stands by. KV
// events, load and bookings are plain messages. They may be lost; their sequence numbers show it. Ends of requests are plain
// messages too: a booking whose end is lost ends when its engine is empty. The plan is the entry of a second bucket, and the
// lease of the leading planner the entry of a third: a plan of an earlier leader is refused. A fourth bucket has the scale that
// another program than Stator should carry out, in JSON. A fifth has the tokens that tenants have used of their budgets: all routers
// write it, by compare-and-set. In two more, agents publish the engines that they can run, their slots,
// and the planner which of them should. Where nodes fetch each other's KV blocks is in plain messages, which are repeated as
// leases are, because agents both write and read it. All storage is memory, because every value on the bus can be written again
// by the process that made it. [Embed] runs a server in this process, and [Connect] joins one.
//
// A process has two connections, which are restored for ever. Control carries leases, load, bookings, ends and
// requests to agents. Data carries KV events, so that a burst of them delays no lease.
//
// # Subjects
//
//	stator.v1.<cluster>.kv.<node>                 batches of KV events, and marks, of the node's ranks
//	stator.v1.<cluster>.load.<worker>             an engine's load
//	stator.v1.<cluster>.book.<replica>            bookings of a replica of the router
//	stator.v1.<cluster>.ends.<replica>            ends of requests that this replica decided, from access logs of others
//	stator.v1.<cluster>.gone                      access logs that Envoys closed
//	stator.v1.<cluster>.demand.<replica>          what clients have asked of a replica of the router
//	stator.v1.<cluster>.kvstore.<node>            where other nodes fetch the KV blocks of a node
//	stator.v1.<cluster>.drains                    operators' orders to drain workers and nodes
//	stator.v1.<cluster>.here.<kind>               parts that are there: routers, control planes and planners
//	stator.v1.<cluster>.here.kv_store.<node>      the same of agents with stores of KV blocks
//	stator.v1.<cluster>.rpc.<worker>.<epoch>.replay    requests for past batches
//	stator.v1.<cluster>.rpc.<worker>.<epoch>.snapshot  requests for a snapshot, page by page
//	stator.v1.<cluster>.index.<replica>.<worker>.<epoch>  requests to another replica of the router for a snapshot
//	stator.v1.<cluster>.answer.<node>.<random>    answers to these requests, for the router that has made the subject
//
// A worker's name is "local" or "node.local". So the node is a separate token of these subjects, and NATS
// permissions can confine an agent to its node. The node of an agent without a name is "_" in the subjects
// of events and stores. Requests name the epoch, so that no agent answers for an engine process that is not its own.
//
// # The door
//
// A server can have [User]s, each with a [Role], whose [Permissions] are subjects. The node in a worker's name is a part of
// its subjects and of the key of its lease, so an agent is confined to the workers of its node. Receivers compare
// the sender in a message with its subject. NATS sends its answers to any subject that a client names,
// so buckets have no roll-ups and no direct reads, and a message that begins like JSON is refused.
//
// # Presence
//
// Workers are leases. Other parts publish that they are there, so that routers can report which of them are absent: see [Parts]. Nothing
// else depends on it. The subject has the kind of the part, so a role cannot publish for another one, and a store's has its node.
//
// # Messages
//
// Messages are protocol buffers, defined in busv1/*.proto, of less than 1 MiB each. A reader skips
// fields that it does not have and drops messages that it cannot use; both are counted, and logged
// once a minute. A change that older readers cannot skip needs a new version in the subjects.
//
// # Failures
//
//	event                          effect
//	the server is away             published messages fill a buffer, then publishing fails; writes of leases are repeated
//	the login is refused           tried again for ever, with the password that the file has then; a warning a minute
//	the server is back             buckets are created and leases written again, and watches start again
//	the server is back and empty   the same: the processes that made the values still have them
//	a subscriber is too slow       NATS drops its messages, which are counted; their sequence numbers show it
//	a lease expires                routers ask the server once before the worker goes
//	a node's stores are not
//	    published for a lifetime   other nodes fetch no KV blocks from it any more
//	a part does not publish that
//	    it is there for a lifetime routers report it as absent; none while the bus is away
//	two agents claim one worker    the second one stands by and logs an error
//	all routers, control planes    drains of operators are forgotten: they are in no storage
//	    and planners have ended
//	a node has 512 leases          further ones are refused and counted, until some of them have gone
//	a term is an hour ahead of
//	    the reader's clock         the plan or assignment is refused, and the next leader may replace it
//	two routers add used tokens
//	    at once                    one of them reads the sums again, and adds to these
//	the sums of used tokens are
//	    lost or unreadable         the next router writes the sums that it knows
//	a request names a subject
//	    that is none for answers   it is dropped and counted: the agent may write to its leases, but not to a subject of a router's choice
//	a message of a newer release   unknown fields are skipped and counted
//	a message that is unreadable   dropped and counted
//
// The package does not know the meaning of a lease or an event for routing: packages discovery and feed do.
//
// # Concurrency
//
// A Bus is safe for concurrent use. Functions named Hold, Watch, Serve and Subscribe block until
// their context ends and own the goroutines that they start. Callbacks of one call run one at a
// time.
package bus
