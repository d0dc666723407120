package debugapi

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/utils/ptr"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

// setLevel sets the level and returns the response; a verbosity of unset is the configured one.
func (r *rig) setLevel(t *testing.T, verbosity *int32, limit time.Duration) *debugv1.LogLevel {
	t.Helper()
	req := &debugv1.SetLogLevelRequest{Verbosity: verbosity}
	if limit != 0 {
		req.Duration = durationpb.New(limit)
	}
	resp, err := r.SetLogLevel(t.Context(), req, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetLevel()
}

// wantLevel checks the level that the process reports, and whether it logs details.
func (r *rig) wantLevel(t *testing.T, verbosity int32, until time.Time) {
	t.Helper()
	resp, err := r.GetLogLevel(t.Context(), &debugv1.GetLogLevelRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	want := &debugv1.LogLevel{Verbosity: verbosity, Configured: 2}
	if !until.IsZero() {
		want.Until = timestamppb.New(until)
	}
	if !proto.Equal(resp.GetLevel(), want) {
		t.Errorf("the level is %v, want %v", resp.GetLevel(), want)
	}
	mark := "detail of " + t.Name()
	before := strings.Count(r.log.String(), mark)
	r.logger.Debug(mark)
	if logged := strings.Count(r.log.String(), mark) > before; logged != (verbosity >= 4) {
		t.Errorf("with the verbosity %d details are logged: %t", verbosity, logged)
	}
}

func TestALevelWithATimeLimitReturnsToTheConfiguredOne(t *testing.T) {
	r := serve(t)
	r.wantLevel(t, 2, time.Time{})
	r.setLevel(t, ptr.To[int32](4), 10*time.Minute)
	r.wantLevel(t, 4, begun.Add(10*time.Minute))
	r.clock.Step(9 * time.Minute)
	r.setLevel(t, ptr.To[int32](5), 10*time.Minute) // replaces the first time limit
	r.clock.Step(2 * time.Minute)
	r.wantLevel(t, 5, begun.Add(19*time.Minute))
	r.clock.Step(8 * time.Minute)
	r.wantLevel(t, 2, time.Time{})
	for _, want := range []string{`"the log level was changed"`, "verbosity=4 before=2", "uid=", `"the time limit of the log level has passed"`} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log has not %s:\n%s", want, r.log)
		}
	}
}

func TestALevelWithoutATimeLimitStays(t *testing.T) {
	r := serve(t)
	r.setLevel(t, ptr.To[int32](4), time.Minute)
	r.setLevel(t, ptr.To[int32](6), 0)
	r.clock.Step(time.Hour)
	r.wantLevel(t, 6, time.Time{})
	r.setLevel(t, nil, 0)
	r.wantLevel(t, 2, time.Time{})
}

func TestALevelThatCannotBeIsRefused(t *testing.T) {
	r := serve(t)
	for name, req := range map[string]*debugv1.SetLogLevelRequest{
		"verbosity: ":            {Verbosity: ptr.To[int32](-1)},
		"duration: 100ms":        {Verbosity: ptr.To[int32](4), Duration: durationpb.New(100 * time.Millisecond)},
		"duration: 25h0m0s":      {Verbosity: ptr.To[int32](4), Duration: durationpb.New(25 * time.Hour)},
		"duration: the configur": {Duration: durationpb.New(time.Hour)},
	} {
		_, err := r.SetLogLevel(t.Context(), req, grpc.WaitForReady(true))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%v ends with %v, want %v with %q", req, err, codes.InvalidArgument, name)
		}
	}
	r.wantLevel(t, 2, time.Time{})
}
