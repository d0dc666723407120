package conformance_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/quartet-node/quartet/conformance"
	"github.com/quartet-node/quartet/test/harness"
)

// fault breaks the answers of a part. The zero value breaks nothing.
type fault struct {
	// request changes a request before the part gets it.
	request func(method string, request proto.Message)
	// calling makes a unary call of the part.
	calling func(method string, call func() error) error
	// answer changes the answer of a unary call.
	answer func(method string, request, answer proto.Message, err error) (proto.Message, error)
	// stream returns the function that replaces each message of a new stream by none, one or several.
	stream func(method string, request proto.Message) func(proto.Message) []proto.Message
	// sending is called with the function that sends a message on a stream.
	sending func(send func() error) error
}

// breaker is a server before a part, which passes calls on and breaks their answers.
type breaker struct {
	part  grpc.ClientConnInterface
	files map[string]methodTypes
	fault fault
	// ctx ends the calls under way at the end of the test.
	ctx context.Context //nolint:containedctx // the server's
}

// methodTypes makes the messages of a method.
type methodTypes struct {
	request, answer func() proto.Message
	streams         bool
}

// broken returns a part whose answers have a fault.
func broken(t *testing.T, part conformance.Part, f fault) conformance.Part {
	t.Helper()
	socket := filepath.Join(harness.ShortDir(t), "broken.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &breaker{part: part.Conn, files: methodsOf(), fault: f, ctx: ctx}
	server := grpc.NewServer(grpc.UnknownServiceHandler(b.handle))
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { cancel(); server.Stop(); <-served })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	part.Conn = conn
	return part
}

// handle passes a call on.
func (b *breaker) handle(_ any, in grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	if given, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, given)
	}
	method, _ := grpc.MethodFromServerStream(in)
	types, known := b.files[method]
	if !known {
		return errors.New("no method " + method)
	}
	request := types.request()
	if err := in.RecvMsg(request); err != nil {
		return err
	}
	if b.fault.request != nil {
		b.fault.request(method, request)
	}
	if types.streams {
		return b.stream(ctx, method, types, request, in)
	}
	answer := types.answer()
	call := func() error { return b.part.Invoke(ctx, method, request, answer, grpc.WaitForReady(true)) }
	var err error
	if b.fault.calling != nil {
		err = b.fault.calling(method, call)
	} else {
		err = call()
	}
	if b.fault.answer != nil {
		answer, err = b.fault.answer(method, request, answer, err)
	}
	if err != nil {
		return err
	}
	return in.SendMsg(answer)
}

func (b *breaker) stream(
	ctx context.Context, method string, types methodTypes, request proto.Message, in grpc.ServerStream,
) error {
	out, err := b.part.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := errors.Join(out.SendMsg(request), out.CloseSend()); err != nil {
		return err
	}
	change := func(m proto.Message) []proto.Message { return []proto.Message{m} }
	if b.fault.stream != nil {
		change = b.fault.stream(method, request)
	}
	for {
		m := types.answer()
		if err := out.RecvMsg(m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		for _, m := range change(m) {
			send := func() error { return in.SendMsg(m) }
			if b.fault.sending != nil {
				err = b.fault.sending(send)
			} else {
				err = send()
			}
			if err != nil {
				return err
			}
		}
	}
}

// methodsOf returns the methods of the contracts by their full names.
func methodsOf() map[string]methodTypes {
	all := map[string]methodTypes{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				all["/"+string(service.FullName())+"/"+string(method.Name())] = methodTypes{
					request: maker(method.Input()), answer: maker(method.Output()), streams: method.IsStreamingServer(),
				}
			}
		}
		return true
	})
	return all
}

// maker returns a function that makes messages of a type.
func maker(message protoreflect.MessageDescriptor) func() proto.Message {
	return func() proto.Message {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(message.FullName())
		if err != nil {
			panic(err) // the generated code of a contract registers its messages
		}
		return kind.New().Interface()
	}
}

// checkBroken checks the named rule of a suite on a part with a fault, which must break it.
func checkBroken(t *testing.T, suite conformance.Suite, part conformance.Part, rule string, f fault) {
	t.Helper()
	part = broken(t, part, f)
	part.Rules, part.Patience = []string{rule}, 5*time.Second
	if err := suite.Check(t.Context(), part, func(r conformance.Result) {
		t.Logf("%s: %s", r.Outcome, r.Why)
		if r.Outcome != conformance.Fail || r.Why == "" {
			t.Errorf("a part that breaks %s gets %q", rule, r.Outcome)
		}
	}); err != nil {
		t.Error(err)
	}
}

// everyRuleCanFail checks that each rule of a suite has a fault that breaks it.
func everyRuleCanFail(t *testing.T, suite conformance.Suite, faults map[string][]string) {
	t.Helper()
	for _, rule := range suite.Rules() {
		if len(faults[rule.Name]) == 0 {
			t.Errorf("no broken %s shows that the check of %s can fail", suite.Service, rule.Name)
		}
	}
}
