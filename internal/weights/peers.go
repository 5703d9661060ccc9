package weights

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// peer is another node that was asked.
type peer struct {
	address string
	status  Status
	err     error
}

// describe returns the answers of peers.
func describe(peers []*peer) string {
	if len(peers) == 0 {
		return "there are no peers"
	}
	var parts []string
	for _, p := range peers[:min(len(peers), maxAsked)] {
		switch {
		case p.err != nil:
			parts = append(parts, fmt.Sprintf("%s: %v", p.address, p.err))
		case len(p.status.Way) == 0:
			parts = append(parts, fmt.Sprintf("%s waits itself, with %d of %d chunks", p.address, p.status.Has, p.status.Chunks))
		default:
			parts = append(parts, p.address+" sends to others")
		}
	}
	return strings.Join(parts, "; ")
}

// ask asks all peers for the model.
func (r *receiving) ask(ctx context.Context) ([]*peer, error) {
	addresses, err := r.Peers(ctx)
	if err != nil {
		r.Log.Debug("the peers are unknown", "err", err)
	}
	peers := make([]*peer, 0, len(addresses))
	for _, address := range addresses[:min(len(addresses), maxPeers)] {
		peers = append(peers, &peer{address: address})
	}

	var all sync.WaitGroup
	places := make(chan struct{}, maxAsked)
	for _, p := range peers {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			p.status, p.err = r.status(ctx, p.address)
		})
	}
	all.Wait()
	// This node is among the peers if they were found by a name.
	peers = slices.DeleteFunc(peers, func(p *peer) bool { return p.err == nil && slices.Contains(p.status.Way, r.Node) })
	return peers, ctx.Err()
}

// status asks one peer.
func (r *receiving) status(ctx context.Context, address string) (s Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	response, err := r.get(ctx, address+"/weights?model="+url.QueryEscape(r.Model))
	if err != nil {
		return s, err
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(io.LimitReader(response.Body, maxStatus)).Decode(&s); err != nil {
		return s, fmt.Errorf("its status cannot be read: %w", err)
	}
	if r.ID != (Sum{}) && s.ID != r.ID {
		return s, fmt.Errorf("it has the manifest %s, and not %s", s.ID, r.ID)
	}
	return s, nil
}

// NewClient returns a client for [ReceiverConfig]. tls may be nil. A peer that stands still is given up when a sender's wait is over.
func NewClient(tls *tls.Config) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:     (&net.Dialer{Timeout: askWithin}).DialContext,
			TLSClientConfig: tls, TLSHandshakeTimeout: askWithin, ResponseHeaderTimeout: awaitWithin + askWithin,
			MaxIdleConnsPerHost: maxRequests, IdleConnTimeout: sendWithin, DisableCompression: true, ReadBufferSize: 256 << 10,
		},
	}
}

// errUnavailable is the answer of a peer that sends nothing now: it sends to others, or waits itself. It is no failure, because it is how
// receivers find their places in a chain.
var errUnavailable = errors.New("it sends nothing now")

// get sends a request, and returns the answer if it is a success.
func (r *receiving) get(ctx context.Context, at string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	response, err := r.Client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	const shown = 200
	text, _ := io.ReadAll(io.LimitReader(response.Body, shown))
	err = fmt.Errorf("status %d: %.200q", response.StatusCode, strings.TrimSpace(string(text)))
	if response.StatusCode == http.StatusServiceUnavailable {
		err = fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return nil, err
}

// senders returns the peers that may send, best first: nodes with all files, then nodes that are few steps from one. The order is random
// among equals, so that receivers that begin together do not all ask one node first.
func (r *receiving) senders(peers []*peer) (list []*peer) {
	for _, p := range peers {
		if p.err == nil && p.status.IsFree && p.status.ID == r.folder.manifest.id && !r.wrong[p.address] {
			list = append(list, p)
		}
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	slices.SortStableFunc(list, func(a, b *peer) int { return cmp.Compare(len(a.status.Way), len(b.status.Way)) })
	return list
}

// parseWay reads the nodes of a chunk's way.
func parseWay(text string) ([]string, error) {
	way := strings.Split(text, ",")
	for _, node := range way {
		if !ValidNode(node) {
			return nil, fmt.Errorf("its way is %.80q, and no list of nodes", text)
		}
	}
	if len(way) > maxPeers {
		return nil, fmt.Errorf("its way has %d nodes", len(way))
	}
	return way, nil
}
