// Package plansettings makes the planner's settings from a configuration: the pools, their bounds and targets, and the assumed speed and
// memory of the engines that the configuration launches.
package plansettings
