package kubernetes

import (
	"bufio"
	"bytes"
	"cmp"
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
	// known has the names of the objects that were applied and not removed. A list removes those that it lacks.
	known map[string]bool
	// change is called for an object that was added or changed, and with nil for one that is gone.
	change func(name string, now *T)
	// synced is called after each list, when what it lacks has been removed.
	synced func()
	// trouble is called with the reason why nothing arrives, and with nil when it does again.
	trouble func(error)

	version string // of the last answer; empty if the next step is a list
	retry   backoff.Backoff
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
	f.retry = backoff.Backoff{Min: retryMin, Max: retryMax}
	for ctx.Err() == nil {
		var err error
		if f.version == "" {
			err = f.list(ctx)
		}
		if err == nil {
			err = f.watch(ctx)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}

		pause := f.retry.Next()
		var status *Status
		if errors.As(err, &status) && status.Code < 500 && status.Code != http.StatusTooManyRequests {
			f.version = ""
			pause = retryMax // rights may be back after hours
			if status.Code == http.StatusGone {
				pause = retryMin
				err = nil // it has forgotten the version, which is no trouble
			}
		}
		if err != nil {
			f.trouble(err)
		}
		_ = backoff.Sleep(ctx, pause)
	}
}

// list applies all objects, and removes the known ones that are gone.
func (f *follower[T]) list(ctx context.Context) error {
	seen := map[string]bool{}
	version, err := readAll(ctx, f.client, f.path, f.query, func(item T) {
		seen[item.meta().Name] = true
		f.known[item.meta().Name] = true
		f.change(item.meta().Name, &item)
	})
	if err != nil {
		return err
	}
	for name := range f.known {
		if !seen[name] {
			delete(f.known, name)
			f.change(name, nil)
		}
	}
	f.version = version
	f.synced()
	return nil
}

// readAll calls each with all objects of a list, page by page, and returns the version of the list.
func readAll[T object](ctx context.Context, c *Client, path string, query url.Values, each func(T)) (version string, err error) {
	query = maps.Clone(query)
	query.Set("limit", strconv.Itoa(pageSize))
	for n := 0; n <= maxObjects; {
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		body, err := c.get(ctx, path, query)
		if err == nil {
			err = json.NewDecoder(io.LimitReader(body, maxPage)).Decode(&page)
			_ = body.Close()
		}
		if err != nil {
			return "", fmt.Errorf("list %s: %w", path, err)
		}

		n += max(len(page.Items), 1) // pages without objects have an end, too
		for _, item := range page.Items {
			if item.meta().Name == "" {
				return "", fmt.Errorf("list %s: an object without a name", path)
			}
			each(item)
		}
		if page.Metadata.Continue == "" {
			return page.Metadata.ResourceVersion, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
	return "", fmt.Errorf("list %s: more than %d objects: narrow the labels", path, maxObjects)
}

// watch applies the changes after the version until the answer ends, as API servers bound the time of a watch.
func (f *follower[T]) watch(ctx context.Context) error {
	query := maps.Clone(f.query)
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", f.version)
	body, err := f.client.get(ctx, f.path, query)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.path, err)
	}
	defer func() { _ = body.Close() }()
	f.trouble(nil)

	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 16<<10), maxLine)
	// Without a pause, a server that ends each watch at once would be asked all the time.
	err = errors.New("the API server has ended it without an event")
	for lines.Scan() {
		err = f.event(lines.Bytes())
		if err != nil {
			break
		}
		f.retry.Reset()
	}
	if err = cmp.Or(lines.Err(), err); err != nil {
		return fmt.Errorf("watch %s: %w", f.path, err)
	}
	return nil
}

// errorEvent begins an event whose object is a Status, as API servers write it. All others are decoded in one pass, because a pod has 8 KB
// of JSON: to find the type first took a third more time.
var errorEvent = []byte(`{"type":"ERROR"`)

// event applies one event, and takes its version.
func (f *follower[T]) event(line []byte) error {
	if bytes.HasPrefix(line, errorEvent) {
		var e struct {
			Object Status `json:"object"`
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		return &e.Object
	}

	var e struct {
		Type   string `json:"type"`
		Object T      `json:"object"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return err
	}
	m := e.Object.meta()
	if m.ResourceVersion == "" {
		return errors.New("an event without a version")
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		f.known[m.Name] = true
		f.change(m.Name, &e.Object)
	case "DELETED":
		delete(f.known, m.Name)
		f.change(m.Name, nil)
	}
	f.version = m.ResourceVersion
	return nil
}
