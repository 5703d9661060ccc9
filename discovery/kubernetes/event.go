package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Event is an event about an object, which `kubectl describe` shows with the object.
//
// It is written as an event of the core group, which every version of Kubernetes has, and is not merged with earlier ones: the caller
// decides how often a reason is worth an event. The API server deletes events after an hour by default.
type Event struct {
	Object
	// UID is the UID of the object: kubectl shows no events of an earlier object with the same name.
	UID string
	// Reason is a word in camel case, and Message a sentence. Warning is the type of events about what does not work.
	Reason, Message string
	Warning         bool
}

// maxEventMessage is the longest message that the API server accepts, in bytes.
const maxEventMessage = 1024

// reporter is the component that events name.
const reporter = "stator-planner"

// Record writes an event. It needs the right to create events.
func (c *Client) Record(ctx context.Context, e *Event) error {
	message := e.Message
	if len(message) > maxEventMessage {
		message = strings.ToValidUTF8(message[:maxEventMessage-len("…")], "") + "…"
	}
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}

	// The API server adds a suffix to the name, so that events never collide.
	now := time.Now().UTC().Format(time.RFC3339)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"generateName": e.Name + ".", "namespace": e.Namespace},
		"involvedObject": map[string]any{
			"apiVersion": e.APIVersion, "kind": e.Kind, "namespace": e.Namespace, "name": e.Name, "uid": e.UID,
		},
		"type": kind, "reason": e.Reason, "message": message, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
		"source": map[string]any{"component": reporter}, "reportingComponent": reporter,
	})
	if err != nil {
		return err
	}
	path := "/api/v1/namespaces/" + url.PathEscape(e.Namespace) + "/events"
	if err := c.write(ctx, http.MethodPost, path, "application/json", string(body)); err != nil {
		return fmt.Errorf("record an event of %s: %w", &e.Object, err)
	}
	return nil
}
