package kvsource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Found is where one rank of an engine publishes, as the engine says itself.
type Found struct {
	Rank int
	// Endpoint and Replay are made to connect to: where the engine said that it binds every
	// interface, the host is the one it was asked at. Replay is empty where it has none.
	Endpoint, Replay, Topic string
	// NamesHost says that the engine named a host itself. It may have bound that address; but
	// vLLM connects to an endpoint that was configured with a host, and then nobody hears it
	// unless Config.Bind is set.
	NamesHost bool
}

// ErrNoDiscovery says that the engine does not know the question: it is not vLLM, or an older one.
var ErrNoDiscovery = errors.New("the engine does not tell its event sockets")

const (
	maxSources      = 1 << 20 // bytes of an answer
	maxSourcesRanks = 1024
)

// Discover asks the engine at base (http://host:port) for the event sockets of all its ranks,
// in order of rank. None, without an error, means that it publishes no events. The answer
// is bounded; how long it may take is the context's and the client's affair.
func Discover(ctx context.Context, client *http.Client, base string) ([]Found, error) {
	at, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("discover event sockets: %w", err)
	}
	body, err := ask(ctx, client, at.JoinPath("kv_event_sources").String())
	if err != nil {
		return nil, fmt.Errorf("discover event sockets: %w", err)
	}
	found, err := parseSources(body, at.Hostname())
	if err != nil {
		return nil, fmt.Errorf("discover event sockets: %w", err)
	}
	return found, nil
}

func ask(ctx context.Context, client *http.Client, target string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSources+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, ErrNoDiscovery
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	case len(body) > maxSources:
		return nil, fmt.Errorf("an answer of more than %d bytes", maxSources)
	}
	return body, nil
}

// sourceAnswer is one rank's entry. Fields that are not said are as vLLM's defaults.
type sourceAnswer struct {
	Rank      *int    `json:"data_parallel_rank"`
	Enabled   *bool   `json:"enable_kv_cache_events"`
	Publisher *string `json:"publisher"`
	Endpoint  string  `json:"endpoint"`
	Replay    *string `json:"replay_endpoint"`
	Topic     string  `json:"topic"`
}

// parseSources reads {"0": {...}, "1": {...}}, by rank, or a list of entries that name theirs.
func parseSources(body []byte, host string) ([]Found, error) {
	byRank := map[int]sourceAnswer{}
	if b := bytes.TrimSpace(body); len(b) > 0 && b[0] == '[' {
		var list []sourceAnswer
		if err := json.Unmarshal(b, &list); err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
		for i, a := range list {
			if a.Rank == nil {
				a.Rank = &i
			}
			byRank[*a.Rank] = a
		}
	} else {
		var named map[string]sourceAnswer
		if err := json.Unmarshal(b, &named); err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
		for key, a := range named {
			rank, err := strconv.Atoi(key)
			if err != nil {
				return nil, fmt.Errorf("read answer: %q is not a rank", key)
			}
			byRank[rank] = a
		}
	}
	return collect(byRank, host)
}

func collect(byRank map[int]sourceAnswer, host string) ([]Found, error) {
	if len(byRank) > maxSourcesRanks {
		return nil, fmt.Errorf("%d ranks: the limit is %d", len(byRank), maxSourcesRanks)
	}
	var all []Found
	for rank, a := range byRank {
		if a.Enabled != nil && !*a.Enabled || a.Publisher != nil && *a.Publisher != "zmq" || a.Endpoint == "" {
			continue
		}
		if rank < 0 || rank >= maxSourcesRanks {
			return nil, fmt.Errorf("rank %d is out of range", rank)
		}
		f := Found{Rank: rank, Topic: a.Topic}
		var err error
		if f.Endpoint, f.NamesHost, err = reachable(a.Endpoint, host); err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		if a.Replay != nil && *a.Replay != "" {
			if f.Replay, _, err = reachable(*a.Replay, host); err != nil {
				return nil, fmt.Errorf("rank %d: replay: %w", rank, err)
			}
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Found) int { return a.Rank - b.Rank })
	return all, spread(all)
}

// reachable puts host where an engine binds every interface.
func reachable(endpoint, host string) (reached string, named bool, err error) {
	address, tcp := strings.CutPrefix(endpoint, "tcp://")
	if !tcp {
		_, _, err = splitEndpoint(endpoint)
		return endpoint, false, err
	}
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return "", false, fmt.Errorf("%q has no port", endpoint)
	}
	if port, err := strconv.Atoi(address[i+1:]); err != nil || port < 1 || port > 65535 {
		return "", false, fmt.Errorf("%q has no port that can be connected to", endpoint)
	}
	switch said := strings.Trim(address[:i], "[]"); said {
	case "*", "0.0.0.0", "::", "":
		return "tcp://" + net.JoinHostPort(host, address[i+1:]), false, nil
	default:
		return "tcp://" + net.JoinHostPort(said, address[i+1:]), true, nil
	}
}

// spread raises the ports by the rank where all ranks name the configured one: that is what
// each of them does before it binds.
func spread(all []Found) error {
	if len(all) < 2 || all[0].Endpoint != all[1].Endpoint {
		return nil
	}
	for i := range all {
		f := &all[i]
		var err error
		if f.Endpoint, err = RaisePort(f.Endpoint, f.Rank); err != nil {
			return err
		}
		if f.Replay, err = RaisePort(f.Replay, f.Rank); err != nil {
			return err
		}
	}
	return nil
}

// RaisePort is the endpoint of rank by, where endpoint is that of rank 0. Nothing stays nothing.
func RaisePort(endpoint string, by int) (string, error) {
	if by == 0 || endpoint == "" {
		return endpoint, nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(rest)
	n, err2 := strconv.Atoi(port)
	if !ok || err != nil || err2 != nil || n+by > 65535 {
		return "", fmt.Errorf("%q has no port to raise for rank %d: use tcp://host:port", endpoint, by)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+by)), nil
}
