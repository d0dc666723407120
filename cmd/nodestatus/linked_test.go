package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// The limit was 24 MiB before DebugService, reflection and channelz, which are 0.6 MiB together.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 25) }
