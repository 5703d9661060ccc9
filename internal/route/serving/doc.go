// Package serving has the configuration by which requests for a model are routed: its pool of workers, its policy and cost
// function for each role, and the bounds above which a rank takes no more requests.
package serving
