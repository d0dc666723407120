package runtimecalls

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// secretFields returns the fields of runtime.v1 that may hold secrets, by message and field; "*" is any message. They
// are values of the environment, commands, output of commands, addresses that open a stream, texts of the runtime or of
// a container, what a runtime adds in its verbose answers, which repeats the environment, and credentials.
func secretFields() []string {
	return []string{
		"KeyValue.value",
		"ContainerConfig.command", "ContainerConfig.args", "ExecSyncRequest.cmd", "ExecRequest.cmd",
		"ExecSyncResponse.stdout", "ExecSyncResponse.stderr",
		"*.url", "*.info", "*.auth", "*.message", "*.credential_spec",
		"CheckpointPodRequest.options", "RestorePodRequest.options",
	}
}

// secret reports whether a field is removed.
func secret(field protoreflect.FieldDescriptor) bool {
	fields := secretFields()
	return slices.Contains(fields, string(field.Parent().Name())+"."+string(field.Name())) ||
		slices.Contains(fields, "*."+string(field.Name()))
}

// Redacted returns a copy of a message of runtime.v1 without the fields that may be secret. Annotations stay, except
// the pre-stop hook, because pleg's stream of events has them, too: who stores the message masks them.
func Redacted(message proto.Message) proto.Message {
	out := proto.Clone(message)
	Walk(out.ProtoReflect(), func(in protoreflect.Message, field protoreflect.FieldDescriptor) {
		switch {
		case cancelled(in, field):
			in.Set(field, protoreflect.ValueOfString(context.Canceled.Error()))
		case secret(field):
			in.Clear(field)
		case IsAnnotations(field):
			in.Get(field).Map().Clear(protoreflect.ValueOfString(podlabels.PreStopHandler).MapKey())
		}
	})
	return out
}

// cancelled reports whether a field is the message of a container whose start was cancelled. That it was is kept,
// because pleg decides by it.
func cancelled(in protoreflect.Message, field protoreflect.FieldDescriptor) bool {
	_, isStatus := in.Interface().(*runtimeapi.ContainerStatus)
	return isStatus && field.Name() == "message" && strings.Contains(in.Get(field).String(), context.Canceled.Error())
}

// IsAnnotations reports whether a field holds annotations.
func IsAnnotations(field protoreflect.FieldDescriptor) bool {
	return field.IsMap() && field.Name() == "annotations"
}

// Walk calls visit for each field that is set in a message and in the messages in it; visit may change or clear it.
func Walk(message protoreflect.Message, visit func(in protoreflect.Message, field protoreflect.FieldDescriptor)) {
	message.Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		visit(message, field)
		if !message.Has(field) || field.Kind() != protoreflect.MessageKind {
			return true
		}
		switch value := message.Get(field); {
		case field.IsMap():
			if field.MapValue().Kind() == protoreflect.MessageKind {
				value.Map().Range(func(_ protoreflect.MapKey, value protoreflect.Value) bool {
					Walk(value.Message(), visit)
					return true
				})
			}
		case field.IsList():
			for i := range value.List().Len() {
				Walk(value.List().Get(i).Message(), visit)
			}
		default:
			Walk(value.Message(), visit)
		}
		return true
	})
}
