// Package testkit holds the helpers that tests of several packages share: polling with a deadline, free addresses, a buffer for logs, a
// message bus, a Hugging Face hub, a certificate authority, a model whose tokens are bytes, and the check for leaked goroutines.
//
// Only tests import it. Helpers end the test themselves when something is wrong. When the test ends, they stop and remove
// everything that they made.
package testkit
