package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/stator-project/stator/doctor"
	"github.com/stator-project/stator/internal/metric"
)

const (
	// maxPage bounds the bytes that are read of a page.
	maxPage = 16 << 20
	// maxAsked bounds how many ports are asked at the same time.
	maxAsked = 32
)

// pages are the answers of one admin port. A page that it does not serve is nil.
type pages struct {
	address string
	err     error // the port does not answer
	ready   bool
	reason  string // why it is not ready, or degraded
	metrics metric.Samples

	fleet  *fleetPage
	feed   []feedRank
	envoys *[]envoySeen
	xds    *xdsPage
	plan   *planPage
	agent  *[]agentEngine
	stores *[]storePage
	config *configPage
}

// The pages as far as they are read here. Package admin describes them.
type (
	fleetPage struct {
		Ranks    []Rank
		Emitters []struct {
			Name, Model, Address, Place string

			Connected   bool
			CacheState  string `json:"cache_state"`
			CacheReason string `json:"cache_reason"`
			Blocks      int
		}
	}
	feedRank struct {
		Worker, State, Reason string

		Rank, Blocks int
		Seq          *uint64
	}
	envoySeen struct{ Envoy, Source string }
	xdsPage   struct {
		Failures []struct{ Part, Error string }
		Envoys   []struct {
			Envoy, Version string
			Types          []xdsType
		}
	}
	xdsType struct {
		Type, Sent string
		Accepted   *string
		Refusal    *struct{ Version, Message string }
	}
	planPage struct {
		Term  uint64
		Pools []Pool
	}
	agentEngine struct {
		Worker string
		Ranks  []struct {
			Rank   int
			Next   uint64
			Source *struct{ Connected bool }
		}
	}
	storePage struct {
		Model, State, Reason string

		Slots struct{ Complete, Active, Inactive, Reset int } `json:"host_slots"`
		Tiers []struct {
			Tier, Health, Reason string

			Blocks, Room int
		}
	}
	configPage struct {
		Error   string
		Pending []string `json:"pending_restart"`
	}
)

// Rank is one rank of /debug/fleet. Figures are nil until the engine has reported them.
type Rank struct {
	Worker string `json:"worker"`
	Place  string `json:"place"`
	Rank   int    `json:"rank"`

	Node, Model, Role, State, Health, Why, Address, Engine string

	Asleep      bool
	Cache       string   `json:"cache_state"`
	CacheReason string   `json:"cache_reason"`
	Booked      int64    `json:"booked_requests"`
	Prefill     int64    `json:"booked_prefill_tokens"`
	Decode      int64    `json:"booked_decode_blocks"`
	Running     *int     `json:"reported_running"`
	Waiting     *int     `json:"reported_waiting"`
	KVUsage     *float64 `json:"reported_kv_usage"`
}

// Title returns the worker's name, with the rank if that is not the first one.
func Title(worker string, rank int) string {
	if rank == 0 {
		return worker
	}
	return fmt.Sprintf("%s/%d", worker, rank)
}

// Read asks the ports for everything that they show. It returns within a few times [Timeout].
func Read(ctx context.Context, ports []Port) Status {
	all := make([]pages, len(ports))
	doctor.AskEach(len(ports), maxAsked, func(i int) { all[i] = readPages(ctx, ports[i]) })
	return join(all)
}

// readPages reads all pages of one port.
func readPages(ctx context.Context, port Port) pages {
	p := pages{address: port.Address}
	text, status, err := port.Get(ctx, "/readyz")
	if err != nil {
		p.err = err
		return p
	}
	p.ready = status == http.StatusOK
	p.reason = strings.TrimSpace(string(text))
	if p.ready {
		p.reason = strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(p.reason, "ok")), "degraded: ")
	}

	text, status, err = port.Get(ctx, "/metrics")
	if err == nil && status == http.StatusOK {
		p.metrics, err = metric.Read(strings.NewReader(string(text)))
	}
	p.err = errors.Join(
		err, port.Page(ctx, "/debug/fleet", &p.fleet), port.Page(ctx, "/debug/feed", &p.feed),
		port.Page(ctx, "/debug/envoys", &p.envoys), port.Page(ctx, "/debug/xds", &p.xds),
		port.Page(ctx, "/debug/plan", &p.plan), port.Page(ctx, "/debug/agent", &p.agent),
		port.Page(ctx, "/debug/kv", &p.stores), port.Page(ctx, "/debug/config", &p.config))
	return p
}

// Page reads the JSON form of a page into v, which stays as it is if the port does not serve the page.
func (p Port) Page(ctx context.Context, path string, v any) error {
	mark := "?"
	if strings.Contains(path, mark) {
		mark = "&"
	}
	body, status, err := p.Get(ctx, path+mark+"format=json")
	switch {
	case err != nil:
		return err
	case status == http.StatusNotFound:
		return nil
	case status != http.StatusOK:
		return fmt.Errorf("%s answers with status %d: %.200q", path, status, body)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Get returns the answer to a GET of a page, and its HTTP status.
func (p Port) Get(ctx context.Context, path string) (body []byte, status int, err error) {
	return p.Admin.Get(ctx, path, maxPage)
}
