package testkit

import (
	"testing"

	"go.uber.org/goleak"
)

// natsGoroutines are goroutines that an embedded NATS server keeps until the process ends.
var natsGoroutines = []goleak.Option{
	goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*ipQueue[...]).unregister"),
	goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.init.0.func1"),
}

// Main runs a package's tests and fails when one of them leaves a goroutine running. ignored names
// the goroutines that are expected to stay.
func Main(m *testing.M, ignored ...goleak.Option) {
	goleak.VerifyTestMain(m, append(ignored, natsGoroutines...)...)
}

// NoLeaks fails the test when it leaves a goroutine that did not run when NoLeaks was called. The
// check follows all clean-up functions that are registered later.
func NoLeaks(t testing.TB) {
	before := append([]goleak.Option{goleak.IgnoreCurrent()}, natsGoroutines...)

	t.Cleanup(func() { goleak.VerifyNone(t, before...) })
}
