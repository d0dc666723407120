package kubeletapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// containerLogs answers with the log of a container, as selected by the parameters of v1.PodLogOptions.
func (n *node) containerLogs(w http.ResponseWriter, r *http.Request) {
	request, err := logOptions(r.URL.Query(), n.Clock.Now())
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	log, err := n.logOf(r, &request)
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := untilDone(w, n.idle())
	if err = containerlog.Read(r.Context(), log, request.read, out); err == nil && !out.begun {
		_, err = out.Write(nil) // the headers
	}
	switch {
	case err == nil || r.Context().Err() != nil:
	case !out.begun && errors.Is(err, fs.ErrNotExist):
		n.refuse(w, r, wrong("the log of the container has been removed"))
	case !out.begun:
		n.refuse(w, r, fmt.Errorf("reading the log of the container: %w", err))
	default:
		n.Logger.DebugContext(r.Context(), "a log was not written to its end", telemetry.KeyError, err, "path", r.URL.Path)
		// The client must not mistake the answer for a complete one.
		panic(http.ErrAbortHandler)
	}
}

// logRequest is the requested part of a container's log.
type logRequest struct {
	read     containerlog.Options
	previous bool
}

// logOptions parses v1.PodLogOptions from a query. Now is the time from which sinceSeconds counts back.
func logOptions(query url.Values, now time.Time) (logRequest, error) {
	o := logRequest{previous: flag(query, "previous")}
	o.read = containerlog.Options{Tail: -1, Follow: flag(query, "follow"), Timestamps: flag(query, "timestamps")}
	if tail := query.Get("tail"); tail != "" && tail != "all" {
		query.Set("tailLines", tail)
	}
	var since int64
	for _, number := range []struct {
		name    string
		minimum int64
		into    *int64
	}{{"tailLines", 0, &o.read.Tail}, {"limitBytes", 1, &o.read.Limit}, {"sinceSeconds", 1, &since}} {
		text := query.Get(number.name)
		if text == "" {
			continue
		}
		value, err := strconv.ParseInt(text, 10, 64)
		if err != nil || value < number.minimum {
			return o, &problem{
				http.StatusUnprocessableEntity,
				fmt.Sprintf("%s: %q must be a number of at least %d", number.name, text, number.minimum),
			}
		}
		*number.into = value
	}
	if since > 0 {
		o.read.Since = now.Add(-time.Duration(min(since, maxSince)) * time.Second)
	}
	if text := query.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || since > 0 {
			return o, &problem{http.StatusUnprocessableEntity, "sinceTime: must be a time as 2006-01-02T15:04:05Z, and not beside sinceSeconds"}
		}
		o.read.Since = at
	}
	// A kubelet returns one of the two streams only with the feature PodLogsQuerySplitStreams, which is off.
	if stream := query.Get("stream"); stream != "" && stream != v1.LogStreamAll {
		return o, wrong("stream: %q cannot be selected: leave it out", stream)
	}
	return o, nil
}

// maxSince is the longest duration in seconds.
const maxSince = int64(1<<63-1) / int64(time.Second)

// flag parses a boolean like Kubernetes: a parameter that is present is true, unless its value is false or 0.
func flag(query url.Values, name string) bool {
	values, ok := query[name]
	return ok && len(values) > 0 && !strings.EqualFold(values[0], "false") && values[0] != "0"
}

// logOf asks the runtime for the path of the log, and sets o to check whether the container still writes.
func (n *node) logOf(r *http.Request, o *logRequest) (string, error) {
	pod, container, err := n.containerOf(r)
	if err != nil {
		return "", err
	}
	id, err := chooseContainer(pod, container.Name, o.previous)
	if err != nil {
		return "", err
	}
	runtime, err := n.Runtime()
	if err != nil {
		return "", err
	}
	answer, err := runtime.ContainerStatus(r.Context(), id, false)
	if status.Code(err) == codes.NotFound {
		// As of an evicted pod, whose containers are removed. kubectl shows the text of a bad request, and not of "not
		// found".
		return "", wrong("unable to retrieve container logs for container %q in pod %q: it has been removed from the runtime", container.Name, pod.Name)
	}
	if err != nil {
		return "", fmt.Errorf("asking the runtime for the container's log: %w", err)
	}
	path := answer.GetStatus().GetLogPath()
	if path == "" {
		return "", notFound("container %q has no log", container.Name)
	}
	o.read.Running = func(ctx context.Context) (bool, error) { return n.running(ctx, id) }
	return path, nil
}

// running reports whether a container may still write. If the runtime is away, the container is assumed to run.
func (n *node) running(ctx context.Context, id string) (bool, error) {
	runtime, err := n.Runtime()
	if err != nil {
		return true, nil //nolint:nilerr // it runs without the runtime
	}
	answer, err := runtime.ContainerStatus(ctx, id, false)
	switch {
	case err == nil:
		return answer.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, nil
	case status.Code(err) == codes.NotFound:
		return false, nil
	default:
		return ctx.Err() == nil, ctx.Err()
	}
}

// chooseContainer returns the runtime's ID of the container whose log is requested: the one that runs or ran last, or
// the one before it. If there is none, the error says why.
func chooseContainer(pod *v1.Pod, name string, previous bool) (string, error) {
	var status *v1.ContainerStatus
	for _, statuses := range [][]v1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range statuses {
			if statuses[i].Name == name {
				status = &statuses[i]
			}
		}
	}
	if status == nil {
		return "", wrong("container %q in pod %q is not available", name, pod.Name)
	}
	before := status.LastTerminationState.Terminated
	id := ""
	switch now := status.State; {
	case previous && (before == nil || before.ContainerID == ""):
		return "", wrong("previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		id = before.ContainerID
	case now.Running != nil:
		id = status.ContainerID
	case now.Terminated != nil && now.Terminated.ContainerID != "":
		id = now.Terminated.ContainerID
	case before != nil && before.ContainerID != "":
		id = before.ContainerID
	case now.Terminated != nil:
		return "", wrong("container %q in pod %q is terminated", name, pod.Name)
	case now.Waiting != nil && (now.Waiting.Reason == "ErrImagePull" || now.Waiting.Reason == "ImagePullBackOff"):
		return "", wrong("container %q in pod %q is waiting to start: trying and failing to pull image", name, pod.Name)
	case now.Waiting != nil:
		return "", wrong("container %q in pod %q is waiting to start: %s", name, pod.Name, now.Waiting.Reason)
	}
	if _, bare, ok := strings.Cut(id, "://"); ok && bare != "" {
		return bare, nil
	}
	return "", wrong("container %q in pod %q is waiting to start - no logs yet", name, pod.Name)
}
