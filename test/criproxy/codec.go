package criproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is an undecoded message.
type frame []byte

// passthrough is a codec that does not decode messages.
type passthrough struct{}

// Marshal implements encoding.CodecV2.
func (passthrough) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("criproxy: %T is not an undecoded message", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*f)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (passthrough) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("criproxy: %T does not hold an undecoded message", v)
	}
	*f = data.Materialize() // a copy, because gRPC reuses its buffers
	return nil
}

// Name implements encoding.CodecV2: the messages are protobuf's.
func (passthrough) Name() string { return "proto" }
