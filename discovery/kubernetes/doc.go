// Package kubernetes finds the workers of models in a Kubernetes cluster: the pods of InferencePools, or pods with some labels.
//
// A router reads two resources with it, InferencePools and pods, and writes nothing. It needs the rights get, list and watch on them in
// their namespaces. It speaks HTTP itself: Kubernetes' own client would add 36 MB to the program, and take twice the memory.
//
//	pod                                        worker
//	ready, with an IP, not being deleted       one for each target port, once its engine has answered
//	not ready, or being deleted                none, at once
//	replaced under the same name, or restarted another epoch: its cache is empty
//	label llm-d.ai/role, or a label of Dynamo  the role: prefill, decode, or both
//	label of a revision                        workers of other revisions do not exchange KV caches with it
//	labels of its node, and its own            the taints of its place: see placeLabels
//
// An engine is asked once for its identity: the kind of engine, the name of the model, the size of its blocks, its ranks. See
// [engineprobe.Identify]. One that does not answer is asked again, and gets no requests. Later its kubelet reports whether it is ready.
//
// # Names
//
// A worker has the name of its pod, so that kubectl and stator speak of the same. Three kinds of pods have a hash behind the name: those
// of another namespace than the first one, those whose name has a dot, and those whose name is longer than 63 characters. An engine of a
// pod with several ports has its port behind the name.
//
// # Places
//
// The labels of a node are read when the first pod runs there, and every five minutes, if the account has the right to get nodes. That
// right is one for all of the cluster, so without it the labels of pods count alone: Kubernetes copies the zone to pods from 1.35 on.
// Another place of a pod does not make another worker.
//
// # From the API to workers
//
//	follower[inferencePool] -> target: labels and ports
//	follower[pod]           -> endpoints of each pod, by its labels and its status
//	ask                     -> identity of each endpoint, as its engine reports it
//	Source.Workers          -> endpoints with an identity, for package config
//
// The first three run beside each other and write into the groups of a Source; the last one reads them. Only endpoints and targets
// decide, and they are pure: see pod.go and pool.go.
//
// # When the API server is away
//
//	event                                              effect
//	a watch ends, as API servers have them do          another one, from the last version, at once
//	the version is too old (410)                       another list; pods that it lacks are removed
//	no answer, an answer cut off, 429, 5xx             another attempt, after a pause that doubles; the workers stay
//	401, 403, 404                                      the same, with the longest pause
//
// [Source.Err] has the reason meanwhile. Engines that fail then are found by their requests and by probes, as everywhere.
//
// # Cost
//
// A pod of an engine has 7 KB of JSON, of which ten fields are decoded. To follow 5,000 pods takes some 20 MB, and 0.13 ms of CPU for each
// change. The program test/benchdiscovery measures it on a real API server; see docs/results/benchmarks.md.
//
// # Numbers of replicas
//
// A planner reads and sets the number of replicas of objects. It needs these rights in their namespaces, and none to change the objects
// themselves: an account that may patch a Deployment can have it run any program.
//
//	call                       right
//	Client.Scale               get the object, and its subresource scale
//	Client.SetScale            patch the subresource scale
//	Client.SetDeletionCost     patch pods
//	Client.FollowScaledPods    list and watch pods
//	Client.Autoscalers         list horizontalpodautoscalers, and scaledobjects of keda.sh if there are any
//	Client.Uncreated           list events
//
// The API server records who has set a number, as the field manager of spec.replicas, in the write that sets it. So the record needs no
// annotation, which would need the right to patch the object, and could differ from the number.
//
// # Concurrency
//
// [Source.Run] owns a goroutine for each pool, one for each watch, and one for each engine that has not answered yet. All methods of a
// Source are safe for concurrent use.
//
// # A look from outside
//
// [Client.Pools] and [Client.Service] read what is there now, for the doctor: the pickers of pools, too. They need the right to list
// services and endpointslices beside those of a router.
package kubernetes
