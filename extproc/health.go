package extproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// The names under which clients ask for the health of a router, by the protocol of gRPC:
//
//	name                         SERVING
//	liveness                     from the start to the end
//	"" (Envoy's health check)    while new streams are accepted: after the first workers are in the fleet, and until the router stops
//	readiness and the others     the same, and every model has a ready worker
//
// Manifests for endpoint pickers of the Gateway API ask for inference-extension.
const (
	healthLiveness = "liveness"
	healthServer   = ""
)

var healthReadiness = []string{"readiness", "inference-extension", extprocv3.ExternalProcessor_ServiceDesc.ServiceName}

// healthPause is the longest time between two looks at the models: a worker's state may change without a change of the fleet.
const healthPause = time.Second

// newHealth returns the health of a router that does not serve yet.
func newHealth() *health.Server {
	h := health.NewServer()
	setServing(h, false, append(healthReadiness, healthServer)...)
	setServing(h, true, healthLiveness)
	return h
}

func setServing(h *health.Server, serving bool, names ...string) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range names {
		h.SetServingStatus(name, status)
	}
}

// followHealth publishes the health of a router that serves, until ctx ends. Then it is not ready any more.
func (r *Router) followHealth(ctx context.Context) {
	h := r.doors.health
	setServing(h, true, healthServer)
	defer setServing(h, false, append(healthReadiness, healthServer)...)

	again := time.NewTicker(healthPause)
	defer again.Stop()
	for {
		changed := r.fleet.Changed()
		setServing(h, r.ReadyModels() == nil, healthReadiness...)

		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// ServeStart serves the health of a process whose router does not exist yet, because its fleet is looked for, until stop is called: it
// lives and is not ready. A kubelet would take no answer for a process that hangs, and restart it.
func ServeStart(ln net.Listener, log *slog.Logger) (stop func()) {
	return serveHealth(ln, newHealth(), log)
}

// serveHealth serves nothing but the health, without TLS, until stop is called: kubelets ask for it and speak no TLS. It does not end the
// router if it fails, because requests do not need it.
func serveHealth(ln net.Listener, h *health.Server, log *slog.Logger) (stop func()) {
	g := grpc.NewServer()
	healthv1.RegisterHealthServer(g, h)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := g.Serve(ln); err != nil {
			log.Error("the port for health has ended", "err", err)
		}
	}()
	return func() {
		g.Stop()
		<-done
	}
}

// Listening returns an error before Run listens for Envoys. A gateway that sent requests until then would get no decision: what it does
// with them depends on its failure mode. The admin port is open before, so its /readyz asks here.
func (r *Router) Listening() error {
	if r.listens.Load() {
		return nil
	}
	return errStarts
}

var errStarts = errors.New("the router waits for the workers on the bus, or takes the cache states of other replicas")

// ReadyModels returns an error unless every model has a ready worker, or one starts as soon as requests wait. The error names the workers
// that are not ready, and why. One model without a worker is enough: a load balancer cannot send the requests of the others here alone.
func (r *Router) ReadyModels() error {
	for _, m := range r.routes.Models() {
		if m.Ready > 0 || m.Adapter != "" {
			continue // adapters come and go, and need no worker
		}
		if r.Idle(m.Pool) {
			continue // its requests wait here for a worker that starts for them
		}
		err := fmt.Errorf("model %s has no ready worker", m.Name)
		if unready := r.fleet.Snapshot().Unready(m.Name); unready != "" {
			err = fmt.Errorf("%w: %s", err, unready)
		}
		return err
	}
	return nil
}

// Degraded returns why requests are decided without the files of their models; nil if all have them. The router serves all the same: see
// [hubFiles].
func (r *Router) Degraded() error { return errors.Join(r.models.hubErr(), r.absent(), r.absentParts()) }
