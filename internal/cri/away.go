package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NotConnectedError is the error of an unreachable runtime. It names a remedy.
type NotConnectedError struct {
	// Endpoint is the configured address.
	Endpoint string
	// Cause is the error of the last attempt; nil if none has ended.
	Cause error
	// Ended is the error of the caller's context if its end has stopped the attempts; nil otherwise.
	Ended error
}

// Away wraps the error of an unanswered call in a *NotConnectedError.
func Away(endpoint string, err error) error {
	if known := new(NotConnectedError); errors.As(err, &known) {
		return known
	}
	return &NotConnectedError{Endpoint: endpoint, Cause: err}
}

// Error returns the failure and its remedy.
func (e *NotConnectedError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("the container runtime at %s has not answered yet: see that it runs", e.Endpoint)
	}
	return fmt.Sprintf("the container runtime at %s does not answer: %s: %s", e.Endpoint, plain(e.Cause), remedy(e.Cause))
}

// Unwrap returns the non-nil errors.
func (e *NotConnectedError) Unwrap() []error {
	var all []error
	for _, err := range []error{e.Cause, e.Ended} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// plain returns the text of an error without gRPC's prefixes.
func plain(err error) string {
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	const dialing = "Error while dialing: "
	if at := strings.LastIndex(text, dialing); at >= 0 {
		text = strings.TrimSuffix(text[at+len(dialing):], `"`)
	}
	return text
}

// remedy returns the advice for an unreachable runtime. gRPC keeps only the text of system errors.
func remedy(err error) string {
	const name = "name its socket with containerRuntimeEndpoint or --container-runtime-endpoint"
	text := err.Error()
	switch {
	case status.Code(err) == codes.Unimplemented:
		return "it does not serve CRI v1, which containerd does from 1.6 on: update it; if it is new enough, its CRI plugin is turned off, as in the containerd " +
			`that comes with Docker: take "cri" out of disabled_plugins in /etc/containerd/config.toml and start it again`
	case strings.Contains(text, "no such file or directory"):
		return "start it, or " + name + "; in a container, see that the directory of the socket is mounted"
	case strings.Contains(text, "connection refused"):
		return "nothing serves on that socket any more: start the runtime, or " + name
	case strings.Contains(text, "permission denied"):
		return "run as root, or as a user that may use that socket"
	case status.Code(err) == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		return "it takes connections and hangs: see its log"
	default:
		return "see that it runs, and " + name + " if that is another"
	}
}
