package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/stator-project/stator/test/endpoints"
	"github.com/stator-project/stator/test/process"
)

// endpointsSection sends a request to each endpoint through a gateway in front of real engines. With --endpoints it keeps the results in a
// file, of which the table in docs/endpoints.md is made.
func endpointsSection(ctx context.Context, b *bench, engines []*engine, p *page) error {
	vllm, err := b.vllmColumn(ctx, engines)
	if err != nil {
		return fmt.Errorf("vLLM: %w", err)
	}
	llama, err := b.llamaColumn(ctx)
	if err != nil {
		return fmt.Errorf("llama.cpp: %w", err)
	}

	if b.endpoints != "" {
		if err := endpoints.Replace(b.endpoints, vllm, llama); err != nil {
			return err
		}
	}
	p.section("Endpoints")
	p.text("A request for each endpoint, sent twice to vLLM and to llama.cpp. [The table](../endpoints.md) has the routes and the "+
		"engines' statuses. On exact routes, %d of vLLM and %d of llama.cpp, engines reported the tokens that decisions expected.",
		vllm.Exact(), llama.Exact())
	return nil
}

// vllmColumn plays the requests with vLLM: engines for the model that generates, and one more for vectors.
func (b *bench) vllmColumn(ctx context.Context, engines []*engine) (c endpoints.Column, err error) {
	pooling, err := b.startPoolingEngine()
	if err != nil {
		return c, err
	}
	defer pooling.stop()
	b.progressf("wait for engine %s with the embedding model", pooling.name)
	if err := pooling.await(ctx); err != nil {
		return c, err
	}

	var workers strings.Builder
	for _, e := range engines {
		if err := e.forget(ctx); err != nil {
			return c, err
		}
		fmt.Fprintf(&workers, "  - {name: %s, engine: vllm, address: %q, kvEvents: %q, kvReplay: %q}\n",
			e.name, e.address, e.events, e.replay)
	}
	ready := func(ctx context.Context, g *process.Gateway) error { return g.Exact(ctx, modelName) }
	results, err := b.playEndpoints(ctx, ready, vectorsName, fmt.Sprintf(
		"- name: %s\n  path: %q\n  blockSize: %d\n  workers:\n%s- {name: %s, workers: [{name: %s, engine: vllm, address: %q}]}\n",
		modelName, b.model, blockSize, workers.String(), vectorsName, poolingName, pooling.address))
	return endpoints.Column{Engine: "vLLM " + b.version, Kind: "vllm", Results: results}, err
}

// llamaColumn plays the requests with a llama.cpp server.
func (b *bench) llamaColumn(ctx context.Context) (c endpoints.Column, err error) {
	python, err := filepath.Abs(b.llamaPython)
	if err != nil {
		return c, err
	}
	model, err := filepath.Abs(b.llamaModel)
	if err != nil {
		return c, err
	}
	results, err := b.playEndpoints(ctx, nil, modelName, fmt.Sprintf(
		"- name: %s\n  path: %q\n  blockSize: %d\n"+
			"  launch: [{engine: llamacpp, count: 1, python: %q, args: {ctx: 4096, slots: 1, threads: 1}}]\n",
		modelName, model, llamaBlock, python))
	return endpoints.Column{Engine: "llama.cpp", Kind: "llamacpp", Results: results}, err
}

// playEndpoints plays the requests through a gateway with these models, and the default paths that pass. Vectors is the model for vectors.
func (b *bench) playEndpoints(
	ctx context.Context, ready func(context.Context, *process.Gateway) error, vectors, models string,
) (map[string]endpoints.Result, error) {
	g, err := process.StartGateway(ctx, process.GatewayConfig{
		Stator: b.stator, Envoy: b.envoy, Folder: b.folder, Patience: startTime, Ready: ready,
		Configuration: "apiVersion: stator.dev/v1alpha1\nkind: Stator\nmodels:\n" + models,
	})
	if err != nil {
		return nil, err
	}
	defer g.Stop()
	return endpoints.Play(ctx, g, endpoints.Models{Model: modelName, Vectors: vectors})
}
