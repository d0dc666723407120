package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

// silenceLimit bounds the wait for a stream to be silent.
const silenceLimit = time.Minute

func plainRule(name, comment, text string, check func(context.Context, *bench) error) rule {
	return rule{Rule{Name: name, Comment: comment, Text: text}, check}
}

// levelStreamRules are the rules of the stream contract for a level-triggered stream of any service. They need no
// change of its state.
func levelStreamRules(watchOf func(*bench) watch) []rule {
	with := func(check func(context.Context, *bench, watch) error) func(context.Context, *bench) error {
		return func(ctx context.Context, b *bench) error { return check(ctx, b, watchOf(b)) }
	}
	return []rule{
		plainRule("stream-frames", streamContract, "The order of frames on one subscription is always", with(levelFrames)),
		plainRule("stream-tokens", "quartet.stream.v1.Frame.resume_token",
			"Set on DELTA, SYNCED and BOOKMARK, and on OPENED if the subscription was resumed. Empty on SNAPSHOT",
			with(levelTokens)),
		plainRule("stream-version", "quartet.stream.v1.Opening.kubernetes_api_version",
			"The version of k8s.io/api with which pods and nodes in this stream are marshaled", with(levelVersion)),
		plainRule("stream-invalid-token", "quartet.stream.v1.Start.START_SNAPSHOT_INVALID",
			"The token cannot be read: a snapshot follows.", with(func(ctx context.Context, b *bench, open watch) error {
				return b.invalidToken(ctx, open)
			})),
		plainRule("stream-resumable", streamContract,
			"a token yields exactly the missed changes, or a fresh snapshot that is announced as such",
			with(levelResumable)),
		plainRule("stream-bookmark", "quartet.stream.v1.Kind.KIND_BOOKMARK",
			"Nothing has happened for 10 s, and the stream is alive.", with(levelBookmark)),
	}
}

// moreStreamRules are the rules of the stream contract for a further level-triggered stream of a service, whose names
// begin with that of the stream. Its content has no pods, so it has no rule of their version.
func moreStreamRules(stream string, watchOf func(*bench) watch) []rule {
	rules := slices.DeleteFunc(levelStreamRules(watchOf), func(r rule) bool { return r.Name == "stream-version" })
	for i := range rules {
		rules[i].Name = stream + "-" + rules[i].Name
	}
	return rules
}

// framed is a message of a subscription.
type framed interface {
	proto.Message
	GetFrame() *streamv1.Frame
}

// watchOf returns the watch of a call that opens a subscription, for rules that do not look at the content. A service
// that does not have the stream is skipped.
func watchOf[M framed](
	open func(ctx context.Context, token []byte) (interface{ Recv() (M, error) }, error),
) watch {
	return func(ctx context.Context, token []byte) (receive, error) {
		stream, err := open(ctx, token)
		if err != nil {
			return nil, err
		}
		return func() (message, error) {
			m, err := stream.Recv()
			if status.Code(err) == codes.Unimplemented {
				return message{}, skip("it does not have this stream: " + status.Convert(err).Message())
			}
			if err != nil {
				return message{}, err
			}
			return message{Frame: m.GetFrame(), payload: m}, nil
		}, nil
	}
}

// levelFrames checks the frames of a new and of a resumed subscription.
func levelFrames(ctx context.Context, b *bench, open watch) error {
	var token []byte
	for range 2 {
		s, err := subscribe(ctx, open, token)
		if err != nil {
			return err
		}
		s.grammar = &grammar{given: len(token) > 0}
		_, err = s.begin(ctx, b.patience)
		s.close()
		if err != nil {
			return err
		}
		token = s.token
	}
	return nil
}

// levelTokens checks the tokens at the begin of a new and of a resumed subscription.
func levelTokens(ctx context.Context, b *bench, open watch) error {
	var token []byte
	for range 2 {
		s, err := subscribe(ctx, open, token)
		if err != nil {
			return err
		}
		resumed := false
		for begun := false; !begun; {
			m, err := s.next(ctx, b.patience)
			if err != nil {
				s.close()
				return err
			}
			resumed = resumed || m.GetOpening().GetStart() == streamv1.Start_START_RESUMED
			if err := tokens(m, resumed); err != nil {
				s.close()
				return err
			}
			begun = resumed || m.GetKind() == streamv1.Kind_KIND_SYNCED
		}
		s.close()
		token = s.token
	}
	return nil
}

func levelVersion(ctx context.Context, b *bench, open watch) error {
	s, err := subscribe(ctx, open, nil)
	if err != nil {
		return err
	}
	defer s.close()
	m, err := s.next(ctx, b.patience)
	if err != nil {
		return err
	}
	if m.GetOpening().GetKubernetesApiVersion() == "" {
		return fmt.Errorf("%v has no version", m)
	}
	return nil
}

// levelResumable resumes after the snapshot.
func levelResumable(ctx context.Context, b *bench, open watch) error {
	s, _, err := b.watching(ctx, open, nil)
	if err != nil {
		return err
	}
	s.close()
	_, begun, err := b.watching(ctx, open, s.token)
	if err != nil {
		return err
	}
	allowed := []streamv1.Start{
		streamv1.Start_START_RESUMED, streamv1.Start_START_SNAPSHOT_COMPACTED, streamv1.Start_START_SNAPSHOT_EPOCH,
	}
	if !slices.Contains(allowed, begun.start) {
		return fmt.Errorf("the token of the end of a snapshot begins with %v", begun.start)
	}
	return nil
}

// levelBookmark waits until the stream is silent.
func levelBookmark(ctx context.Context, b *bench, open watch) error {
	s, _, err := b.watching(ctx, open, nil)
	if err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < silenceLimit; {
		m, err := s.next(ctx, bookmarkAfter)
		if errors.Is(err, errSilent) {
			return fmt.Errorf("no bookmark: %w", err)
		}
		if err != nil {
			return err
		}
		if m.GetKind() == streamv1.Kind_KIND_BOOKMARK {
			return nil
		}
	}
	return skip("the stream was never silent for 10 s")
}
