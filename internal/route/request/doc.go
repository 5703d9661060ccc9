// Package request has a request to route, as its caller passes it and as it is after it was read.
//
// [Request] is the caller's. [Prepared] has the input of a decision's steps: the model, the routing hints of the body and of trusted
// headers, and the prompt's tokens and blocks. Everything in it may alias the body. Hints that outlive the decision are copied by
// [Hints.ForQueue].
package request
