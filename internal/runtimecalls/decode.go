package runtimecalls

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

// Decode returns the messages of a call; response is nil if the call has failed. It fails for a method that runtime.v1
// of this version does not have, and for a damaged message.
func Decode(call *debugv1.RuntimeCall) (request, response proto.Message, err error) {
	method := methodOf(call.GetMethod())
	if method == nil {
		return nil, nil, fmt.Errorf("%q is no method of the runtime: run the same version of all parts", call.GetMethod())
	}
	if request, err = decode(method.Input(), call.GetRequest()); err != nil {
		return nil, nil, fmt.Errorf("read the request of %s: %w", call.GetMethod(), err)
	}
	if call.GetCode() != 0 {
		return request, nil, nil
	}
	if response, err = decode(method.Output(), call.GetResponse()); err != nil {
		return nil, nil, fmt.Errorf("read the answer of %s: %w", call.GetMethod(), err)
	}
	return request, response, nil
}

// methodOf returns the method with a name, of either service of the runtime; nil if there is none.
func methodOf(name string) protoreflect.MethodDescriptor {
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		if method := services.Get(i).Methods().ByName(protoreflect.Name(name)); method != nil {
			return method
		}
	}
	return nil
}

func decode(of protoreflect.MessageDescriptor, data []byte) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return nil, err
	}
	message := kind.New().Interface()
	return message, proto.Unmarshal(data, message)
}
