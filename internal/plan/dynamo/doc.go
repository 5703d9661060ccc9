// Package dynamo computes how many workers the planner of NVIDIA Dynamo would ask for.
//
// It exists for comparison and for fleets that move from Dynamo: the same inputs give the same replicas. The formulas were read in
// the sources of 2026-08, and the tests hold the package to figures that Dynamo's own code produced.
//
//	algorithm    decides from                           fleets                        entry point
//	classic      a profile, forecasts, corrections      prefill and decode            [Config.Classic]
//	throughput   a timing model, forecasts              disaggregated or aggregated   [Config.Throughput]
//	load         queues and KV caches, every 5 s        disaggregated or aggregated   [Config.LoadScaling]
//
// Releases up to 1.0 had the classic algorithm, later ones have the other two. The classic algorithm has no variant for aggregated
// engines. All functions are pure: states are values that they return and do not change. Times are in milliseconds, because Dynamo's
// figures are; rates are requests per second.
//
// Not rebuilt: estimates from a database of silicon, attention data parallelism, the Prophet predictor, and plugins.
package dynamo
