package streamtest

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

const (
	// laterNumber is the number of enum values that no version of today has.
	laterNumber = 99
	// laterPatience is how long the messages of a later version may take.
	laterPatience = time.Minute
	// unknownKind is the label of the counted messages of unknown kinds.
	unknownKind = "unknown"
)

// lastToken is the token of the last message.
const lastToken = "the last one"

// Later follows a stream whose server is of a later version: it sends frames of unknown kinds, contents that are not
// known, and unknown values of all enums at any depth. Nothing of it may end the subscription, because its server would
// send it again. What is unknown must be counted. Method is the full name of the method of the stream.
func Later[V any](t *testing.T, method protoreflect.FullName, source func(*grpc.ClientConn) stream.Source[V]) {
	t.Helper()
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(method)
	if err != nil {
		t.Fatal(err)
	}
	described, ok := found.(protoreflect.MethodDescriptor)
	if !ok {
		t.Fatalf("%s is no method", method)
	}
	server := &laterServer{method: described}
	conn := server.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), laterPatience)
	defer cancel()
	registry := prometheus.NewRegistry()
	err = stream.Follow(ctx, stream.FollowConfig[V]{
		Source: laterSource[V]{source(conn), cancel}, Name: "later", Handle: func(stream.Change[V]) {},
		Metrics: stream.NewFollowedMetrics(registry, "later"),
	})
	if ctx.Err() == context.DeadlineExceeded {
		t.Errorf("%s: the last message did not arrive: %v", method, err)
	}
	if opened := server.opened.Load(); opened != 1 {
		t.Errorf("%s: the stream was opened %d times, want once", method, opened)
	}
	if counted(t, registry) == 0 {
		t.Errorf("%s: no message was counted as unknown", method)
	}
}

// counted returns the number of messages that were counted as unknown.
func counted(t *testing.T, registry *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				if pair.GetValue() == unknownKind {
					n += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// laterSource is a source that calls a function at the last message.
type laterSource[V any] struct {
	stream.Source[V]

	done func()
}

func (s laterSource[V]) Subscribe(ctx context.Context, token []byte) (stream.Subscription[V], error) {
	sub, err := s.Source.Subscribe(ctx, token)
	return laterSubscription[V]{sub, s.done}, err
}

type laterSubscription[V any] struct {
	stream.Subscription[V]

	done func()
}

func (s laterSubscription[V]) Next(ctx context.Context) (stream.Message[V], error) {
	m, err := s.Subscription.Next(ctx)
	if err == nil && string(m.Token) == lastToken {
		s.done()
	}
	return m, err
}

// laterServer serves one method.
type laterServer struct {
	method protoreflect.MethodDescriptor
	opened atomic.Int32
}

// serve returns a connection to the server, until the end of the test.
func (s *laterServer) serve(t *testing.T) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(s.handle))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// handle sends the messages of a later version, and then nothing.
func (s *laterServer) handle(_ any, to grpc.ServerStream) error {
	if err := to.RecvMsg(dynamicpb.NewMessage(s.method.Input())); err != nil {
		return err
	}
	s.opened.Add(1)
	full := func() *dynamicpb.Message { return laterMessage(s.method.Output(), nil) }
	empty := func() *dynamicpb.Message { return dynamicpb.NewMessage(s.method.Output()) }
	token := []byte("a token")
	for _, one := range []struct {
		frame   *streamv1.Frame
		content *dynamicpb.Message
	}{
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_OPENED, Opening: &streamv1.Opening{Start: laterNumber}}, empty()},
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_SNAPSHOT, Key: "a"}, full()},
		{&streamv1.Frame{Kind: laterNumber, Key: "a"}, full()},
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_SNAPSHOT, Key: "b"}, empty()},
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_SYNCED, ResumeToken: token}, empty()},
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_DELTA, Key: "a", ResumeToken: token}, full()},
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_DELTA, Key: "c", ResumeToken: token}, empty()},
		{&streamv1.Frame{Kind: laterNumber, ResumeToken: token}, empty()},
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_DELTA, Key: "d", Removed: true, ResumeToken: token}, empty()},
		{&streamv1.Frame{Kind: streamv1.Kind_KIND_BOOKMARK, ResumeToken: []byte(lastToken)}, empty()},
	} {
		field := s.method.Output().Fields().ByName("frame")
		wire, err := proto.Marshal(one.frame)
		if err != nil {
			return err
		}
		frame := dynamicpb.NewMessage(field.Message())
		if err := proto.Unmarshal(wire, frame); err != nil {
			return err
		}
		one.content.Set(field, protoreflect.ValueOfMessage(frame))
		if err := to.SendMsg(one.content); err != nil {
			return err
		}
	}
	<-to.Context().Done()
	return nil
}

// laterMessage returns a message with a value of a later version in each enum, and with all messages that it has. The
// last field of a oneof is the one that is set.
func laterMessage(of protoreflect.MessageDescriptor, within []protoreflect.FullName) *dynamicpb.Message {
	m := dynamicpb.NewMessage(of)
	for _, name := range within {
		if name == of.FullName() {
			return m // a message in itself
		}
	}
	within = append(within[:len(within):len(within)], of.FullName())
	fields := of.Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		var value protoreflect.Value
		switch {
		case field.IsMap():
			continue
		case field.Kind() == protoreflect.EnumKind:
			value = protoreflect.ValueOfEnum(laterNumber)
		case field.Kind() == protoreflect.MessageKind:
			value = protoreflect.ValueOfMessage(laterMessage(field.Message(), within))
		default:
			continue
		}
		if field.IsList() {
			m.Mutable(field).List().Append(value)
		} else {
			m.Set(field, value)
		}
	}
	return m
}
