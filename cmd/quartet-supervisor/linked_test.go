package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// A part of a node that links gRPC alone has 10 MiB.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 5) }
