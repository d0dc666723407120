package recordcmd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/noderecording"
)

// callsRetry is the pause before the calls of a process that was away are watched again.
const callsRetry = 200 * time.Millisecond

// errDropped ends a stream of calls that has a gap. The next one begins anew, as if the process had been away.
var errDropped = errors.New("calls were dropped")

// streamError is why a stream of calls has ended.
type streamError struct{ err error }

// Error implements error.
func (e *streamError) Error() string { return e.err.Error() }

// Unwrap implements errors.Unwrap.
func (e *streamError) Unwrap() error { return e.err }

// followCalls records the calls of the runtime that a process makes. begun is called when all calls from then on are
// recorded, or it is known that none are: the user has not the role, or the process is of an earlier version. The
// recording then goes on without them, and the user is told.
func (o *recorder) followCalls(
	ctx context.Context, part noderecording.Part, service layout.Service, conn grpc.ClientConnInterface, begun func(),
) error {
	begun = sync.OnceFunc(begun)
	for {
		up, err := o.watchCalls(ctx, part, conn, begun)
		var ended *streamError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &ended):
			return err
		}
		if up {
			if err := o.write(part, noderecording.Down, "", nil); err != nil {
				return err
			}
		}
		if code := status.Code(ended.err); code == codes.PermissionDenied || code == codes.Unimplemented {
			begun()
			o.has(part)
			return o.tell(service, ended.err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(callsRetry):
		}
	}
}

// followHeartbeats records what nodestatus computes the Node from, if the user may see it.
func (o *recorder) followHeartbeats(ctx context.Context, c clients) error {
	if !o.calls {
		return nil
	}
	try, cancel := context.WithCancel(ctx)
	defer cancel()
	sub, err := c.heartbeats().Subscribe(try, nil)
	if err == nil {
		_, err = sub.Next(try)
		sub.Close()
	}
	cancel()
	if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unimplemented {
		o.has(noderecording.Heartbeats)
		return o.note("The heartbeats of nodestatus are not recorded: " + reason(code))
	}
	return followPart(ctx, o, noderecording.Heartbeats, c.heartbeats(), nil)
}

// tell says that the calls of a process are not recorded.
func (o *recorder) tell(service layout.Service, err error) error {
	return o.note(fmt.Sprintf("The runtime calls of %s are not recorded: %s", service, reason(status.Code(err))))
}

// reason returns why a process does not give what only the role admin may see, or what only later versions have.
func reason(code codes.Code) string {
	if code == codes.PermissionDenied {
		return "that needs the role admin"
	}
	return "it is of an earlier version"
}

// note tells the user something.
func (o *recorder) note(text string) error {
	_, err := fmt.Fprintln(o.notes, text)
	return err
}

// watchCalls records calls until the stream ends, whose error is a *streamError. up reports whether it had begun.
func (o *recorder) watchCalls(
	ctx context.Context, part noderecording.Part, conn grpc.ClientConnInterface, begun func(),
) (up bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := debugv1.NewDebugServiceClient(conn).WatchRuntimeCalls(ctx, &debugv1.WatchRuntimeCallsRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		return false, &streamError{err}
	}
	for {
		next, err := watch.Recv()
		if err != nil {
			return up, &streamError{err}
		}
		record := next.GetPlegRecord()
		switch {
		case next.GetDropped() > 0:
			return up, &streamError{errDropped}
		case record != nil:
			err = o.write(noderecording.PLEGRecord, noderecording.Put, record.GetPod().GetUid(), record)
		case next.GetCall() != nil:
			err = o.write(part, noderecording.Put, next.GetCall().GetMethod(), next.GetCall())
		case !up:
			up = true
			err = o.write(part, noderecording.Synced, "", nil)
			begun()
		}
		if err != nil {
			return up, err
		}
	}
}
