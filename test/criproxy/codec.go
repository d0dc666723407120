package criproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is a message as it came.
type frame []byte

// passthrough is a codec that leaves messages as they are.
type passthrough struct{}

// Marshal implements encoding.CodecV2.
func (passthrough) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("criproxy: %T is not a message that came", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*f)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (passthrough) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("criproxy: %T takes no message as it comes", v)
	}
	*f = data.Materialize() // a copy: the buffers are gRPC's
	return nil
}

// Name implements encoding.CodecV2: the messages are those of protobuf.
func (passthrough) Name() string { return "proto" }
