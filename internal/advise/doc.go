// Package advise proposes a fleet for a model on some GPUs: engines that do both or separate ones for prompts and answers, their size,
// their number and their options. It plays the best proposals in the simulator before it returns them.
package advise
