package recordcmd

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// caller serves a stream of calls that ends after each of its rounds, as a process that is killed does.
type caller struct {
	debugv1.UnimplementedDebugServiceServer

	rounds chan []*debugv1.WatchRuntimeCallsResponse
	refuse error
}

// WatchRuntimeCalls implements DebugServiceServer.
func (c *caller) WatchRuntimeCalls(
	_ *debugv1.WatchRuntimeCallsRequest, stream grpc.ServerStreamingServer[debugv1.WatchRuntimeCallsResponse],
) error {
	if c.refuse != nil {
		return c.refuse
	}
	select {
	case <-stream.Context().Done():
		return stream.Context().Err()
	case round := <-c.rounds:
		for _, message := range round {
			if err := stream.Send(message); err != nil {
				return err
			}
		}
	}
	return status.Error(codes.Unavailable, "it is killed")
}

// follow records the calls of a caller until ctx ends, which it reports, and returns the recording and the notes.
func follow(ctx context.Context, t *testing.T, served *caller) (recording, notes *logbuffer.Buffer, end func() error) {
	t.Helper()
	address := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	serving, cancel := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() {
		done <- rpc.Serve(serving, rpc.Config{
			Address: address, Health: rpc.NewHealth(),
			Register: func(s *grpc.Server) { debugv1.RegisterDebugServiceServer(s, served) },
		})
	}()
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, conn.Close()); err != nil {
			t.Error(err)
		}
	})
	recording, notes = &logbuffer.Buffer{}, &logbuffer.Buffer{}
	o := &recorder{notes: notes, mask: noderecording.NewMask()}
	if o.out, err = noderecording.NewWriter(recording, time.Now(), mebibyte); err != nil {
		t.Fatal(err)
	}
	following, stop := context.WithCancel(ctx)
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- o.followCalls(following, noderecording.PLEGCalls, layout.PLEG, conn, func() { close(begun) })
	}()
	<-begun
	return recording, notes, func() error {
		stop()
		return errors.Join(<-ended, o.out.End(time.Now()))
	}
}

// TestCallsAreRecordedWithTheirGaps records calls of a pleg of which it misses some, and that is killed. Each stream
// begins with the record.
func TestCallsAreRecordedWithTheirGaps(t *testing.T) {
	served := &caller{rounds: make(chan []*debugv1.WatchRuntimeCallsResponse, 2)}
	call := &debugv1.RuntimeCall{Method: "ListContainers"}
	record := &debugv1.PLEGRecord{Pod: &debugv1.PLEGRecordPod{Uid: "u"}}
	served.rounds <- []*debugv1.WatchRuntimeCallsResponse{{PlegRecord: record}, {}, {Call: call}, {Call: call, Dropped: 3}}
	served.rounds <- []*debugv1.WatchRuntimeCallsResponse{{}, {Call: call}}
	recording, _, end := follow(t.Context(), t, served)
	eventually.That(t, "both processes have made their calls", func() bool {
		return strings.Count(recording.String(), `"down"`) == 2
	})
	if err := end(); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v, want %v", err, context.Canceled)
	}
	entries, err := noderecording.Read(bytes.NewReader([]byte(recording.String())), "FILE")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, string(e.Op)+" "+e.Key)
	}
	want := "put u,synced ,put ListContainers,down ,synced ,put ListContainers,down "
	if strings.Join(got, ",") != want {
		t.Errorf("recorded is %q, want %q", strings.Join(got, ","), want)
	}
}

// TestARecordingGoesOnWithoutCalls: a user without the role admin gets a recording, and is told what is missing.
func TestARecordingGoesOnWithoutCalls(t *testing.T) {
	for code, want := range map[codes.Code]string{
		codes.PermissionDenied: "The runtime calls of pleg are not recorded: that needs the role admin\n",
		codes.Unimplemented:    "The runtime calls of pleg are not recorded: it is of an earlier version\n",
	} {
		_, notes, end := follow(t.Context(), t, &caller{refuse: status.Error(code, "no")})
		if err := end(); err != nil {
			t.Errorf("%v ends with %v, want no error", code, err)
		}
		if got := notes.String(); got != want {
			t.Errorf("the user is told %q, want %q", got, want)
		}
	}
}
