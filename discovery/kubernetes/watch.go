package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

// object is one that can be followed. Its fields are those that are read: the others of an object, a hundred times as many, are not
// decoded. An object that is null has empty metadata.
type object interface {
	meta() metadata
}

// named is the part that all objects have.
type named struct {
	Metadata metadata `json:"metadata"`
}

func (n named) meta() metadata { return n.Metadata }

// metadata is the part of an object by which it is followed.
type metadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion"`
	Labels            map[string]string `json:"labels"`
	DeletionTimestamp string            `json:"deletionTimestamp"`
}

// follower follows the objects of one resource. Its functions are called from one goroutine, the one of run.
//
//	version   next step
//	empty     a list, which gives a version
//	known     a watch of the changes since then, which gives newer ones
//
// So nothing is missed between a list and a watch, nor between two watches. An API server keeps some minutes of changes; if a version is
// older the answer is 410, and the next step is a list again.
type follower[T object] struct {
	client *Client
	// path is the path of the list, and query has its selectors.
	path  string
	query url.Values
	// apply is called for an object that was added or changed, and remove with the name of one that is gone.
	apply  func(T)
	remove func(name string)
	// synced is called after each list, when what it lacks has been removed.
	synced func()
	// trouble is called with the reason why nothing arrives, and with nil when it does again.
	trouble func(error)

	known map[string]bool // the names that were applied
}

const (
	// retryMin and retryMax are the pauses between attempts that fail. The longest is short enough for fleets to be right again soon
	// after a restart of the API server, and long enough for one that refuses this process.
	retryMin = 200 * time.Millisecond
	retryMax = 10 * time.Second
	// pageSize is the number of objects of one answer. 5,000 pods are 40 MB of JSON.
	pageSize = 500
	// maxObjects bounds the objects of a list. Kubernetes supports 150,000 pods in a cluster; a selector for all of them is a mistake.
	maxObjects = 50_000
	// maxLine bounds an event of a watch: etcd bounds an object to 1.5 MiB. maxPage bounds an answer of a list.
	maxLine = 4 << 20
	maxPage = 256 << 20
)

// run lists and watches until ctx ends.
func (f *follower[T]) run(ctx context.Context) {
	f.known = map[string]bool{}
	retry := backoff.Backoff{Min: retryMin, Max: retryMax}
	version := ""
	for ctx.Err() == nil {
		var err error
		if version == "" {
			version, err = f.list(ctx)
		}
		if err == nil {
			var seen bool
			version, seen, err = f.watch(ctx, version)
			if seen {
				retry.Reset()
			}
		}
		if err == nil || ctx.Err() != nil {
			continue
		}

		pause := retry.Next()
		var status *Status
		if errors.As(err, &status) {
			switch {
			case status.Code == http.StatusGone: // it has forgotten the version, which is no trouble
				version = ""
				_ = backoff.Sleep(ctx, retryMin)
				continue
			case status.Code < 500 && status.Code != http.StatusTooManyRequests:
				version = "" // rights may be back after hours, when the version is too old
				pause = retryMax
			}
		}
		f.trouble(err)
		_ = backoff.Sleep(ctx, pause)
	}
}

// list applies all objects, and removes the known ones that are gone. It returns the version of the list.
func (f *follower[T]) list(ctx context.Context) (version string, err error) {
	seen := map[string]bool{}
	query := maps.Clone(f.query)
	query.Set("limit", strconv.Itoa(pageSize))
	for {
		page, err := f.page(ctx, query)
		if err != nil {
			return "", err
		}
		for _, item := range page.Items {
			name := item.meta().Name
			if name == "" {
				return "", fmt.Errorf("list %s: an object without a name", f.path)
			}
			seen[name] = true
			f.known[name] = true
			f.apply(item)
		}
		if len(seen) > maxObjects {
			return "", fmt.Errorf("list %s: more than %d objects: narrow the labels", f.path, maxObjects)
		}
		version = page.Metadata.ResourceVersion
		if page.Metadata.Continue == "" {
			break
		}
		query.Set("continue", page.Metadata.Continue)
	}

	for name := range f.known {
		if !seen[name] {
			delete(f.known, name)
			f.remove(name)
		}
	}
	f.synced()
	return version, nil
}

// listPage is an answer to a list.
type listPage[T object] struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

// page reads one answer of a list.
func (f *follower[T]) page(ctx context.Context, query url.Values) (page listPage[T], err error) {
	resp, err := f.client.get(ctx, f.path, query)
	if err != nil {
		return page, fmt.Errorf("list %s: %w", f.path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPage)).Decode(&page); err != nil {
		return page, fmt.Errorf("list %s: %w", f.path, err)
	}
	return page, nil
}

// watch applies changes after a version until the answer ends. It returns the last version, and whether there was a change.
func (f *follower[T]) watch(ctx context.Context, version string) (last string, seen bool, err error) {
	query := maps.Clone(f.query)
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", version)
	resp, err := f.client.get(ctx, f.path, query)
	if err != nil {
		return version, false, fmt.Errorf("watch %s: %w", f.path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	f.trouble(nil)

	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 16<<10), maxLine)
	for lines.Scan() {
		next, err := f.event(lines.Bytes())
		if err != nil {
			return version, seen, fmt.Errorf("watch %s: %w", f.path, err)
		}
		version = next
		seen = true
	}
	if err := lines.Err(); err != nil {
		return version, seen, fmt.Errorf("watch %s: %w", f.path, err)
	}
	// An end after events, or bookmarks, is how API servers bound the time of a watch.
	if !seen {
		// Without a pause, a server that ends each watch at once would be asked all the time.
		return version, false, fmt.Errorf("watch %s: the API server has ended it without an event", f.path)
	}
	return version, true, nil
}

// errorEvent begins an event whose object is a Status, as API servers write it. All others are decoded in one pass, because a pod has 8 KB
// of JSON: to find the type first took a third more time.
var errorEvent = []byte(`{"type":"ERROR"`)

// event applies one event, and returns its version.
func (f *follower[T]) event(line []byte) (version string, err error) {
	if bytes.HasPrefix(line, errorEvent) {
		var e struct {
			Object Status `json:"object"`
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return "", err
		}
		return "", &e.Object
	}

	var e struct {
		Type   string `json:"type"`
		Object T      `json:"object"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return "", err
	}
	m := e.Object.meta()
	if m.ResourceVersion == "" {
		return "", errors.New("an event without a version")
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		f.known[m.Name] = true
		f.apply(e.Object)
	case "DELETED":
		delete(f.known, m.Name)
		f.remove(m.Name)
	}
	return m.ResourceVersion, nil
}
