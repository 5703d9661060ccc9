// Package kubernetes scales objects of a Kubernetes cluster as the plan asks for: Deployments, StatefulSets, LeaderWorkerSets, and objects
// of any other kind with the subresource scale.
//
// A target is one object whose replicas are the workers of one pool. [Changes] is the whole decision, pure: from a plan and the state of
// the targets to the changes that are due now, and why the others wait. A [Connector] observes the targets, adds pods that
// have not started and the numbers of others to the observations of plans, and carries the changes out.
//
//	need of the plan     what happens
//	more replicas        PATCH of the scale, as far as the budget of GPUs has room beside all pods that are still there
//	fewer replicas       the plan drains workers; when their requests have ended, PATCH of the scale
//	the same             nothing, whatever the object's controller does meanwhile
//
// # Which pods end
//
//	pods of                              the pods that end                          so the plan drains
//	a ReplicaSet                         those with the least deletion cost         any: by place, load and the value of their caches
//	a StatefulSet, a LeaderWorkerSet     those with the highest ordinals            the highest ordinals alone
//
// A drain comes first, always: ends of pods abort the requests that they still have after their grace period. So the number is lowered as
// far as drained pods have ended their requests, one after the other, and never below.
//
// A drained pod gets a low deletion cost when its drain begins, and the least one when its requests have ended: a ReplicaSet whose number
// falls by one then ends no drained pod that is still busy. It loses the cost if the plan takes the worker back.
//
// # The budget
//
// A pod has its GPUs until it is gone, long after its object has stopped counting it. So a move from prefill to decode first lowers the
// one, and raises the other when the last of these pods is gone. The plan names the pods that it waits for.
//
// # Who sets the number
//
// The API server records who has set the number of replicas last, as the field manager. A planner's is stator-planner.TERM.DECISION.
//
//	the number was set by                         effect
//	this planner, or an earlier one               the plan is carried out
//	a HorizontalPodAutoscaler, or KEDA            none, as long as there is one: it is named
//	a person, with `kubectl scale` or the like    it stays until the plan's own number comes as far
//	who created the object                        the plan is carried out
//	a planner of a later term                     none: that one leads
//
// # Rollouts
//
// While the pods of a target are of two revisions, its controller ends pods by their revisions, and not by deletion costs or ordinals
// alone. So no worker is drained and the number does not fall until the rollout is over. It may rise. All roles of a DisaggregatedSet
// roll together.
//
// # Failures
//
//	event                                        effect
//	the API server is away, 429, 5xx             the pool keeps its number, and the reason has the error; tried again after 1 s to 10 s
//	403, 404, no such kind                       the same; until a trial succeeds, which changes nothing, no worker is drained
//	409: the object has changed meanwhile        it is read again
//	pods are not created, or do not start        the plan names them, with the message of the quota, the scheduler or the kubelet
//	a worker does not end its requests in time   its pod ends all the same after planner.drainTimeout
//	the planner that leads is another one now    no plan arrives, so nothing is written any more
//
// # Events
//
// Events of targets and pods have the reasons of plans, so that kubectl describe shows them. A recommendation, which [Connector.Advise]
// gets in place of a plan, is nothing else. An event that cannot be written delays the next changes by 5 s at most, once a minute.
//
// # Concurrency
//
// Run uses the goroutines that it starts, and ends them. All other methods may be called beside it.
package kubernetes
