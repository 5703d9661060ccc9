package process

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stator-project/stator/test/loopback"
)

// GatewayConfig has the settings of a gateway.
type GatewayConfig struct {
	// Stator is the program, and Envoy the path of Envoy; empty for the one that stator finds.
	Stator, Envoy string
	// Configuration is the text of the configuration. To are addresses of engines that the gateway serves without one.
	Configuration string
	To            []string
	// Args are further arguments of stator up.
	Args []string
	// Folder gets the configuration and the log; empty is a folder that the gateway's end removes.
	Folder string
	// LogLevel is the lowest level of the log; empty is the program's default.
	LogLevel string
	// Env are variables beside the variables of this process.
	Env []string
	// Patience bounds the time until the gateway serves; default a minute.
	Patience time.Duration
	// Ready returns nil when the gateway, which serves, is ready in every other way; nil is at once.
	Ready func(ctx context.Context, g *Gateway) error
}

// Router returns the value of the configuration's key router for a policy. It may have a cost function behind a slash, and the function's
// scale of prefill load behind an @: kv/dynamo@16.
func Router(policy string) string {
	name, rest, _ := strings.Cut(policy, "/")
	cost, scale, scaled := strings.Cut(rest, "@")
	weights := "{}"
	if scaled {
		weights = "{prefillLoadScale: " + scale + "}"
	}
	return fmt.Sprintf("{policy: %s, cost: %s, weights: %s}", name, cmp.Or(cost, "delay"), weights)
}

// Gateway is a running `stator up` on loopback. Create it with [StartGateway]. Envoy and engines are processes under it.
type Gateway struct {
	*Child
	// URL and Admin are the addresses of the gateway and of its admin port.
	URL, Admin string
	// File is the path of the configuration, which is empty and unused for a gateway without one.
	File   string
	Client *http.Client

	remove string // a folder that is removed at the end
}

// idleConnections is the number of connections that a gateway's client keeps for later requests.
const idleConnections = 512

// StartGateway starts a gateway, and returns when it is ready.
func StartGateway(ctx context.Context, cfg GatewayConfig) (*Gateway, error) {
	listen, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	admin, err := loopback.Address()
	if err != nil {
		return nil, err
	}

	g := &Gateway{
		URL: "http://" + listen, Admin: "http://" + admin,
		Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: idleConnections}},
	}
	folder := cfg.Folder
	if folder == "" {
		folder, err = os.MkdirTemp("", "stator-gateway-")
		if err != nil {
			return nil, err
		}
		g.remove = folder
	}
	g.File = filepath.Join(folder, "stator.yaml")
	if err := os.WriteFile(g.File, []byte(cfg.Configuration), 0o600); err != nil {
		g.clear()
		return nil, err
	}

	args := append([]string{"up", "--listen-address", listen, "--admin-address", admin}, cfg.Args...)
	if len(cfg.To) > 0 {
		args = append(args, "--to", strings.Join(cfg.To, ","))
	} else {
		args = append(args, "--config", g.File)
	}
	if cfg.LogLevel != "" {
		args = append(args, "--log-level", cfg.LogLevel)
	}
	if cfg.Envoy != "" {
		args = append(args, "--envoy", cfg.Envoy)
	}
	g.Child, err = StartChild("the gateway", filepath.Join(folder, "stator.log"), cfg.Env, cfg.Stator, args...)
	if err != nil {
		g.clear()
		return nil, err
	}

	err = g.Await(ctx, cmp.Or(cfg.Patience, time.Minute), func(ctx context.Context) error {
		_, err := g.Get(ctx, g.Admin+"/readyz")
		if err == nil && cfg.Ready != nil {
			err = cfg.Ready(ctx, g)
		}
		return err
	})
	if err != nil {
		g.Stop()
		return nil, err
	}
	return g, nil
}

// Rank is the gateway's report of a rank.
type Rank struct {
	Worker, Address, Model, State string
	Cache                         string `json:"cache_state"`
}

// Ranks returns the gateway's reports of all ranks.
func (g *Gateway) Ranks(ctx context.Context) ([]Rank, error) {
	text, err := g.Get(ctx, g.Admin+"/debug/fleet?format=json")
	if err != nil {
		return nil, err
	}
	var page struct{ Ranks []Rank }
	err = json.Unmarshal(text, &page)
	return page.Ranks, err
}

// Exact returns an error unless all ranks are ready, and the cache states of the ranks of these models are exact. Without a model,
// all cache states must be exact.
func (g *Gateway) Exact(ctx context.Context, models ...string) error {
	ranks, err := g.Ranks(ctx)
	if err != nil {
		return err
	}
	for _, r := range ranks {
		if r.State != "ready" {
			return fmt.Errorf("%s is %s", r.Worker, r.State)
		}
		if (len(models) == 0 || r.Model == models[0]) && r.Cache != "exact" {
			return fmt.Errorf("the cache state of %s is %s", r.Worker, r.Cache)
		}
	}
	return nil
}

// AwaitRanks returns when n ranks are ready and their cache states exact. The gateway itself is ready with the first one.
func (g *Gateway) AwaitRanks(ctx context.Context, n int) error {
	return g.Await(ctx, time.Minute, func(ctx context.Context) error {
		list, err := g.Ranks(ctx)
		if err != nil {
			return err
		}
		if len(list) != n {
			return fmt.Errorf("%d of %d ranks are there", len(list), n)
		}
		return g.Exact(ctx)
	})
}

// Get returns the body of a page, whose status must be 200.
func (g *Gateway) Get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := g.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered with status %d: %.200s", url, resp.StatusCode, text)
	}
	return text, err
}

// Stop ends the gateway and all that it has started.
func (g *Gateway) Stop() {
	g.Child.Stop()
	g.clear()
}

// clear removes the folder, if it is the gateway's own.
func (g *Gateway) clear() {
	if g.remove != "" {
		_ = os.RemoveAll(g.remove)
	}
}
