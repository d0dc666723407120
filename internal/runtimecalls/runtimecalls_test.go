package runtimecalls_test

import (
	"context"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write testdata/kept.txt")

const secret = "hunter2"

// connected returns the services of a fake runtime, whose calls a Tap takes.
func connected(t *testing.T) (*runtimecalls.Tap, internalapi.RuntimeService, internalapi.ImageManagerService) {
	t.Helper()
	tap := &runtimecalls.Tap{}
	client, err := cri.New(cri.Config{Endpoint: fakecri.New(t).Endpoint(), Timeout: time.Minute, Calls: tap})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	runtime, err := client.Runtime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	images, err := client.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tap, runtime, images
}

// next returns the next call, which must be there already.
func next(t *testing.T, watch *runtimecalls.Watch) (*debugv1.RuntimeCall, uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, err := watch.Next(ctx)
	if err != nil {
		t.Fatalf("there is no call: %v", err)
	}
	return m.GetCall(), m.GetDropped()
}

// TestEveryCallIsTaken makes each call of the CRI once, so that one that is not taken is also found when the interfaces
// grow. Each can be decoded.
func TestEveryCallIsTaken(t *testing.T) {
	tap, runtime, images := connected(t)
	watch := tap.Watch()
	defer watch.Close()
	ended, cancel := context.WithCancel(cri.Quiet(t.Context()))
	cancel()
	for kind, value := range map[reflect.Type]reflect.Value{
		reflect.TypeFor[internalapi.RuntimeService]():      reflect.ValueOf(runtime),
		reflect.TypeFor[internalapi.ImageManagerService](): reflect.ValueOf(images),
	} {
		for i := range kind.NumMethod() {
			method := kind.Method(i)
			if method.Name == "Close" || method.Name == "GetContainerEvents" { // Tap.Event takes the events
				continue
			}
			args := []reflect.Value{reflect.ValueOf(ended)}
			for n := 1; n < method.Type.NumIn(); n++ {
				args = append(args, someOf(method.Type.In(n)))
			}
			value.MethodByName(method.Name).Call(args)
			call, _ := next(t, watch)
			if call.GetMethod() != method.Name || call.GetCode() == 0 || call.GetBeganBoottimeNs() == 0 {
				t.Errorf("after %s the call is %v", method.Name, call)
			}
			if _, response, err := runtimecalls.Decode(call); err != nil || response != nil {
				t.Errorf("the failed call of %s has the answer %v, error %v", method.Name, response, err)
			}
		}
	}
}

// someOf returns an empty value of a type; a pointer is not nil.
func someOf(kind reflect.Type) reflect.Value {
	if kind.Kind() == reflect.Pointer {
		return reflect.New(kind.Elem())
	}
	return reflect.Zero(kind)
}

func TestACallHasItsRequestAndItsAnswer(t *testing.T) {
	tap, runtime, _ := connected(t)
	if _, err := runtime.Version(t.Context(), "v1"); err != nil { // nobody watches
		t.Fatal(err)
	}
	watch := tap.Watch()
	id, err := runtime.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: "a", Uid: "u", Namespace: "n"},
		Annotations: map[string]string{"note": "kept", podlabels.PreStopHandler: secret},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	call, _ := next(t, watch)
	request, response, err := runtimecalls.Decode(call)
	if err != nil {
		t.Fatal(err)
	}
	want := &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: "a", Uid: "u", Namespace: "n"},
		Annotations: map[string]string{"note": "kept"},
	}}
	if diff := cmp.Diff(want, request, protocmp.Transform()); diff != "" {
		t.Errorf("the request (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, response, protocmp.Transform()); diff != "" {
		t.Errorf("the answer (-want +got):\n%s", diff)
	}
	watch.Close()
	if tap.Watched() {
		t.Error("it is watched after the end of the only watch")
	}
}

func TestASlowWatcherMissesCallsAndIsToldHowMany(t *testing.T) {
	tap := &runtimecalls.Tap{}
	slow, quick := tap.Watch(), tap.Watch()
	defer slow.Close()
	defer quick.Close()
	const kept, more = 4096, 10
	event := &runtimeapi.ContainerEventResponse{ContainerId: "c"}
	for range kept + more {
		tap.Event(event)
		if _, dropped := next(t, quick); dropped != 0 {
			t.Fatalf("the quick watcher has missed %d calls", dropped)
		}
	}
	for range kept {
		if _, dropped := next(t, slow); dropped != 0 {
			t.Fatalf("%d calls are missing before the first that was dropped", dropped)
		}
	}
	tap.Event(&runtimeapi.ContainerEventResponse{ContainerId: strings.Repeat("c", 2<<20)}) // larger than any call
	tap.Event(event)
	if _, dropped := next(t, slow); dropped != more+1 {
		t.Errorf("%d calls are missing, want %d", dropped, more+1)
	}
	large := &runtimeapi.ContainerEventResponse{ContainerId: strings.Repeat("c", 1<<19)}
	for range 100 {
		tap.Event(large)
	}
	tap.Event(event)
	for held := 0; ; held++ {
		call, _ := next(t, slow)
		if len(call.GetResponse()) < 1<<19 {
			if held < 31 || held > 32 {
				t.Errorf("%d calls of 512 KiB waited, want at most 16 MiB of them", held)
			}
			return
		}
	}
}

// TestNoSecretPasses fills every text of every message of the CRI, and checks which of them stay. A text that a later
// version of the CRI has is not in the list: decide whether it may hold a secret, and then run the test with -update.
func TestNoSecretPasses(t *testing.T) {
	kept := map[string]bool{}
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			call := &debugv1.RuntimeCall{Method: string(methods.Get(j).Name())}
			request, response, err := runtimecalls.Decode(call)
			if err != nil {
				t.Fatal(err)
			}
			for _, message := range []proto.Message{request, response} {
				fill(message.ProtoReflect(), 0)
				note := func(in protoreflect.Message, field protoreflect.FieldDescriptor) {
					if holdsText(field) {
						kept[string(in.Descriptor().Name())+"."+string(field.Name())] = true
					}
				}
				runtimecalls.Walk(runtimecalls.Redacted(message).ProtoReflect(), note)
			}
		}
	}
	var lines []string
	for name := range kept {
		lines = append(lines, name+"\n")
	}
	slices.Sort(lines)
	got := strings.Join(lines, "")
	if *update {
		if err := os.WriteFile("testdata/kept.txt", []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/kept.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("texts that stay (-want +got):\n%s", diff)
	}
}

func isText(kind protoreflect.Kind) bool {
	return kind == protoreflect.StringKind || kind == protoreflect.BytesKind
}

func holdsText(field protoreflect.FieldDescriptor) bool {
	return isText(field.Kind()) || field.IsMap() && isText(field.MapValue().Kind())
}

// fill sets each text in a message and in the messages in it, as deep as the CRI nests them.
func fill(message protoreflect.Message, depth int) {
	const deepest = 8
	if depth > deepest {
		return
	}
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.IsMap():
			value := message.Mutable(field).Map().NewValue()
			if field.MapValue().Kind() == protoreflect.StringKind {
				value = protoreflect.ValueOfString(secret)
			}
			message.Mutable(field).Map().Set(someKey(field.MapKey()), value)
		case field.IsList():
			if value := message.Mutable(field).List().NewElement(); field.Kind() == protoreflect.MessageKind {
				fill(value.Message(), depth+1)
				message.Mutable(field).List().Append(value)
			} else if isText(field.Kind()) {
				message.Mutable(field).List().Append(textOf(field.Kind()))
			}
		case field.Kind() == protoreflect.MessageKind:
			fill(message.Mutable(field).Message(), depth+1)
		case isText(field.Kind()):
			message.Set(field, textOf(field.Kind()))
		}
	}
}

func textOf(kind protoreflect.Kind) protoreflect.Value {
	if kind == protoreflect.BytesKind {
		return protoreflect.ValueOfBytes([]byte(secret))
	}
	return protoreflect.ValueOfString(secret)
}

func someKey(field protoreflect.FieldDescriptor) protoreflect.MapKey {
	if field.Kind() == protoreflect.StringKind {
		return protoreflect.ValueOfString("key").MapKey()
	}
	return field.Default().MapKey()
}

// TestACancelledStartStaysOne: of a container's message only that its start was cancelled stays, by which pleg decides.
func TestACancelledStartStaysOne(t *testing.T) {
	for message, want := range map[string]string{
		"failed to start " + secret + ": context canceled": "context canceled",
		"failed to start " + secret:                        "",
	} {
		masked, _ := runtimecalls.Redacted(&runtimeapi.ContainerStatus{Message: message}).(*runtimeapi.ContainerStatus)
		if masked.GetMessage() != want {
			t.Errorf("%q becomes %q, want %q", message, masked.GetMessage(), want)
		}
	}
}
