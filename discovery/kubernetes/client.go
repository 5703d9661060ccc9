package kubernetes

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/listen"
)

// accountFolder is the folder in which a kubelet mounts the service account of a pod.
const accountFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// Client reads objects from an API server, and sets the numbers of replicas for a planner. It tries nothing again: followers and planners
// do, because they know what they have already. It is safe for concurrent use.
type Client struct {
	base      string
	tokenFile string // of a token that is valid for an hour or so; empty for an API server that asks for none
	namespace string // of the pod; empty outside of a cluster
	http      *http.Client

	mu      sync.Mutex
	plurals map[string]string // guarded by mu; the paths of resources, by apiVersion and kind; at most maxKinds
}

// NewClient returns the client of an API server: the one of this pod's cluster, by its service account, or the one at a URL that asks for
// no token, such as http://127.0.0.1:8001 of `kubectl proxy`.
func NewClient(api string) (*Client, error) {
	if api != "" {
		at, err := url.Parse(api)
		if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
			return nil, fmt.Errorf("%q is no URL of an API server: use one such as http://127.0.0.1:8001 of `kubectl proxy`", api)
		}
		return &Client{base: strings.TrimSuffix(api, "/"), http: newHTTP(nil)}, nil
	}

	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("this process runs in no pod: name the API server with --kubernetes-api, such as http://127.0.0.1:8001 " +
			"of `kubectl proxy`")
	}
	roots, err := listen.ReadCA(accountFolder + "/ca.crt")
	if err != nil {
		return nil, fmt.Errorf("read the CA of the API server: %w (is automountServiceAccountToken false?)", err)
	}
	namespace, err := os.ReadFile(accountFolder + "/namespace")
	if err != nil {
		return nil, fmt.Errorf("read the namespace of this pod: %w", err)
	}
	return &Client{
		base: "https://" + net.JoinHostPort(host, port), tokenFile: accountFolder + "/token",
		namespace: strings.TrimSpace(string(namespace)), http: newHTTP(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}),
	}, nil
}

// Namespace returns the namespace of this process's pod; empty outside of a cluster.
func (c *Client) Namespace() string { return c.namespace }

// newHTTP returns an HTTP client for lists and watches. Watches last for long, so there is no bound on the whole of an answer.
func newHTTP(secure *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: secure, ForceAttemptHTTP2: true,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		// A watch may be silent for minutes. Pings find a server that is gone without a word.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}}
}

// Status is an answer of an API server that refuses a request.
type Status struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Error returns the server's own message.
func (s *Status) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", s.Code, s.Message)
}

// maxStatus bounds the bytes of a refusal that are read. Their message may be in a line of the log.
const maxStatus = 4 << 10

// get sends a GET request, and returns the body of the answer. A refusal is a *Status.
func (c *Client) get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	return c.do(req)
}

// do sends a request, and returns the body of the answer. A refusal is a *Status.
func (c *Client) do(req *http.Request) (io.ReadCloser, error) {
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile) // for each request: the kubelet replaces it
		if err != nil {
			return nil, fmt.Errorf("read the token of the service account: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}

	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated {
		return resp.Body, nil
	}
	defer func() { _ = resp.Body.Close() }()
	status := &Status{}
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxStatus)).Decode(status) // a proxy in between may answer anything
	status.Code = resp.StatusCode
	status.Message = cmp.Or(status.Message, http.StatusText(resp.StatusCode))
	return nil, status
}
