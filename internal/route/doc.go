// Package route decides which rank takes a request.
//
// [Router.Decide] is one sentence: the prompt's tokens become blocks; the blocks overlap with every rank's
// cache; overlap and load make a cost; and the costs make a pick, which is booked in the same step. Three
// values are passed on between the steps: a [request.Prepared], the [eligible.Field] of ranks that may take
// it, and the candidates as they were [score.Judged]. The result is a [decision.Decision] with its reasons.
//
// The packages below it have one step each, and none of them imports this one:
//
//	request    the request, after it was read
//	serving    how requests for a model are routed: the configuration
//	eligible   which ranks may take it
//	score      its cost on each of them, by a function of package cost
//	pick       which one takes it, and the bookings
//	predict    the blocks that the index of caches should expect then
//	learned    figures about workers, from the ends of requests
//	queue      who goes first while all ranks are busy, or none is ready
//	decision   the result
//
// The package does not talk to Envoy or engines. It does not log; [Router.Stats] has counters. It never
// waits, and the caller passes the time.
//
// # Files
//
// A file uses only files that come before it in this list:
//
//	config, workspace, queues, ids, counts   the parts of a Router
//	router                                   the Router; the files below have its methods
//	models, start, read                      the models, the workers that start, and the request as it is read
//	legs, book, programs, attempt            one attempt to book a request
//	wake, wait                               how requests leave their queue, and how they join it
//	decide, speculate                        the decision about a request, and about a speculative prefill
//	settle, handed, ending                   what follows a decision: the prefill, the transfer and the end
//	stats                                    the counters
//
// # Outcomes
//
// A request is Picked, Refused with a [decision.Reason], or Queued. A queued request gets its final decision when
// a booking ends, or when its wait does: see [request.Ticket].
//
// # Models without a worker
//
// Pools of models with Hold can be at no worker, and [Config.Starts] returns whether one starts because requests wait. A request that
// finds no ready worker then waits in the queue:
//
//	event                                       the requests that wait
//	a worker of their role is ready             are decided in the queue's order
//	their time is over, or the queue is full    503; retry-after is the rest of the time of a start
//	none starts: no planner, no room            requests that come are refused at once; those that wait go on
//	their client leaves                         leave the queue
//
// # Races between decisions
//
// Decisions run in parallel and take no common lock. A decision judges a rank by its load, and books only
// if that load is still the same; else it judges again. So two prompts that come at once see each other,
// and the second one is not sent to the rank that the first one has just filled. Of several decisions at
// least one succeeds in each round.
//
// A queue is different: its requests are decided one after the other under the queue's lock, because its
// purpose is the order among them.
//
// # Concurrency
//
// A Router is safe for concurrent use. Models are reloaded by swapping one pointer: a decision uses the models and the fleet that it found
// at its start. Decisions are immutable once returned.
//
// # Predictions
//
// After a pick the index predicts the prompt's blocks on the picked rank, so that a burst with one prefix
// goes to one rank before the engine's first event. [Config.PredictFor] sets how long a prediction lasts:
// by default 5 s on workers that publish events, and 120 s on others. A request that ends on another worker,
// or on none, takes its prediction back: see [Router.Ended].
package route
