package noderecording

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/runtimecalls"
)

// call masks the annotations in a call of the runtime, as in pleg's events. The service has removed what else may be
// secret, and it is removed again, because the service may be another version.
func (m *Mask) call(value *debugv1.RuntimeCall) (proto.Message, error) {
	request, response, err := runtimecalls.Decode(value)
	if err != nil {
		return nil, err
	}
	out := proto.CloneOf(value)
	if out.Request, err = m.message(request); err != nil {
		return nil, err
	}
	if response == nil {
		return out, nil
	}
	out.Response, err = m.message(response)
	return out, err
}

// message returns a message of runtime.v1 in bytes, with masked annotations.
func (m *Mask) message(message proto.Message) ([]byte, error) {
	masked := runtimecalls.Redacted(message)
	runtimecalls.Walk(masked.ProtoReflect(), func(in protoreflect.Message, field protoreflect.FieldDescriptor) {
		if !runtimecalls.IsAnnotations(field) {
			return
		}
		annotations := in.Mutable(field).Map()
		plain := map[string]string{}
		annotations.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			plain[key.String()] = value.String()
			return true
		})
		m.annotations(plain)
		if hash, has := plain[podlabels.ContainerSpecHash]; has {
			plain[podlabels.ContainerSpecHash] = m.digest(hash) // the hash itself would let others try values
		}
		for key, value := range plain {
			annotations.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
		}
	})
	return proto.Marshal(masked)
}
