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

// Socket is the address at which one rank of an engine publishes.
type Socket struct {
	Rank int
	// Endpoint and Replay are addresses to connect to. If the engine binds every interface the
	// host is the one at which it was asked. Replay is empty for an engine without a replay
	// socket.
	Endpoint, Replay, Topic string
	// NamesHost means that the engine reported an endpoint with a host. It may have bound that
	// address; but vLLM connects to such an endpoint instead of binding it, and then only a
	// source with Config.Bind receives its events.
	NamesHost bool
	// Bind means that the source binds Endpoint, and that the engine connects to it.
	Bind bool
}

// ErrNoDiscovery means that the engine has no page of its event sockets: it is not vLLM, or an older
// version.
var ErrNoDiscovery = errors.New("the engine does not report its event sockets")

const (
	maxSources      = 1 << 20 // bytes of an answer
	maxSourcesRanks = 1024
	maxPort         = 65535
)

// Discover asks the engine at base (http://host:port) for the event sockets of all its ranks,
// sorted by rank. None, without an error, means that it publishes no events. The size of the answer
// is bounded; the context and the client bound the time.
func Discover(ctx context.Context, client *http.Client, base string) ([]Socket, error) {
	at, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("discover event sockets: %w", err)
	}
	body, err := ask(ctx, client, http.MethodGet, at.JoinPath("kv_event_sources").String(), maxSources)
	if err != nil {
		return nil, fmt.Errorf("discover event sockets: %w", err)
	}
	found, err := parseSources(body, at.Hostname())
	if err != nil {
		return nil, fmt.Errorf("discover event sockets: %w", err)
	}
	return found, nil
}

// ask sends a request without a body to an engine, and returns its answer of at most so many bytes. An engine without such a page is
// ErrNoDiscovery.
func ask(ctx context.Context, client *http.Client, method, target string, most int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, ErrNoDiscovery
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	case len(body) > most:
		return nil, fmt.Errorf("an answer of more than %d bytes", most)
	}
	return body, nil
}

// sourceAnswer is one rank's entry. Fields that are missing have vLLM's defaults.
type sourceAnswer struct {
	Rank      *int    `json:"data_parallel_rank"`
	Enabled   *bool   `json:"enable_kv_cache_events"`
	Publisher *string `json:"publisher"`
	Endpoint  string  `json:"endpoint"`
	Replay    *string `json:"replay_endpoint"`
	Topic     string  `json:"topic"`
}

// parseSources reads {"0": {...}, "1": {...}}, by rank, or a list of entries that contain their rank.
func parseSources(body []byte, host string) ([]Socket, error) {
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

// collect returns the sockets of the ranks that publish over ZMQ. An engine with data-parallel ranks may
// publish for some of them only.
func collect(byRank map[int]sourceAnswer, host string) ([]Socket, error) {
	if len(byRank) > maxSourcesRanks {
		return nil, fmt.Errorf("%d ranks: the limit is %d", len(byRank), maxSourcesRanks)
	}

	var all []Socket
	for rank, a := range byRank {
		if a.Enabled != nil && !*a.Enabled || a.Publisher != nil && *a.Publisher != "zmq" || a.Endpoint == "" {
			continue
		}
		if rank < 0 || rank >= maxSourcesRanks {
			return nil, fmt.Errorf("rank %d is out of range", rank)
		}

		f := Socket{Rank: rank, Topic: a.Topic}
		var err error
		f.Endpoint, f.NamesHost, err = reachable(a.Endpoint, host)
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		if a.Replay != nil && *a.Replay != "" {
			f.Replay, _, err = reachable(*a.Replay, host)
			if err != nil {
				return nil, fmt.Errorf("rank %d: replay: %w", rank, err)
			}
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Socket) int { return a.Rank - b.Rank })
	return all, raisePorts(all)
}

// reachable replaces the address of an engine that binds every interface by host. named reports whether
// the engine named a host itself.
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
	if port, err := strconv.Atoi(address[i+1:]); err != nil || port < 1 || port > maxPort {
		return "", false, fmt.Errorf("%q has no port that can be connected to", endpoint)
	}
	switch engineHost := strings.Trim(address[:i], "[]"); engineHost {
	case "*", "0.0.0.0", "::", "":
		return "tcp://" + net.JoinHostPort(host, address[i+1:]), false, nil
	default:
		return "tcp://" + net.JoinHostPort(engineHost, address[i+1:]), true, nil
	}
}

// raisePorts raises each rank's ports by its number if all ranks report the configured endpoint: each
// rank of an engine does so before it binds.
func raisePorts(all []Socket) error {
	if len(all) < 2 || all[0].Endpoint != all[1].Endpoint {
		return nil
	}
	for i := range all {
		f := &all[i]
		var err error
		f.Endpoint, err = rankEndpoint(f.Endpoint, f.Rank)
		if err != nil {
			return err
		}
		f.Replay, err = rankEndpoint(f.Replay, f.Rank)
		if err != nil {
			return err
		}
	}
	return nil
}

// rankEndpoint returns the endpoint of a rank from the endpoint of rank 0, as vLLM derives it: the port is raised by
// the rank, and the path of a Unix socket gets _dp and the rank at its end. An empty endpoint stays empty.
func rankEndpoint(endpoint string, rank int) (string, error) {
	if rank == 0 || endpoint == "" {
		return endpoint, nil
	}
	if strings.HasPrefix(endpoint, "ipc://") {
		return endpoint + "_dp" + strconv.Itoa(rank), nil
	}

	address, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(address)
	n, portErr := strconv.Atoi(port)
	if !ok || err != nil || portErr != nil || n+rank > maxPort {
		return "", fmt.Errorf("%q has no port to raise for rank %d: use tcp://host:port", endpoint, rank)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), nil
}
