package process

import (
	"context"

	"github.com/stator-project/stator/envoy"
)

// StartEnvoy starts an Envoy and returns when it is ready. stop ends it and waits for that; it is not nil once Envoy has been
// started, also with an error.
func StartEnvoy(ctx context.Context, cfg envoy.Config) (stop func(), err error) {
	p, err := envoy.Start(cfg)
	if err != nil {
		return nil, err
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.Run()
	}()
	stop = func() {
		p.Stop(context.Background())
		<-ended
	}
	return stop, p.WaitReady(ctx)
}
