// Package dynamo computes how many workers the planner of NVIDIA Dynamo would ask for.
//
// It exists for comparisons: the same inputs give the same replicas. The formulas were read in the sources of 2026-08, and the tests hold
// the package to figures that Dynamo's own code produced. [Rule] connects them with package plan, whose engines without a profile are
// sampled at a grid of prompts and batches.
//
//	algorithm    decides from                           fleets                        entry point
//	throughput   a timing model, forecasts              disaggregated or aggregated   [Config.Throughput]
//	load         queues and KV caches, every 5 s        disaggregated or aggregated   [Config.LoadScaling]
//
// All functions are pure: states are values that they return and do not change. Times are in milliseconds, because Dynamo's figures
// are; rates are requests per second.
//
// Not rebuilt: the algorithm of releases up to 1.0, estimates from a database of silicon, attention data parallelism, the Prophet
// predictor, and plugins.
package dynamo
