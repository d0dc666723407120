package streamrpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

// TestAFollowerThatIsRefusedEnds at the first answer that waiting does not mend, and not before.
func TestAFollowerThatIsRefusedEnds(t *testing.T) {
	const unknown = "syncloop does not have the stream of pods: it is of an earlier version: upgrade it, or use a program " +
		"of its version"
	for code, want := range map[codes.Code]string{
		codes.PermissionDenied: "syncloop refuses the stream of pods: say please", codes.Unimplemented: unknown,
		codes.FailedPrecondition: "syncloop refuses the stream of pods: say please",
	} {
		synctest.Test(t, func(t *testing.T) {
			answers := []error{
				status.Error(codes.Unavailable, "away"), status.Error(codes.ResourceExhausted, "too slow"),
				status.Error(code, "say please"),
			}
			source := NewSource(func(context.Context, []byte) (Receive[string], error) {
				err := answers[0]
				answers = answers[1:]
				return func() (*streamv1.Frame, string, error) { return nil, "", err }, nil
			})
			err := stream.Follow(t.Context(), stream.FollowConfig[string]{
				Source: UntilRefused(source, Refusal("syncloop", "pods")), Handle: func(stream.Change[string]) {},
			})
			if refused := (*stream.RefusedError)(nil); !errors.As(err, &refused) || err.Error() != want {
				t.Errorf("Follow() error = %v, want %s", err, want)
			}
		})
	}
}
