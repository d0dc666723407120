package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// The limit was 24 MiB before DebugService, reflection and channelz, which are 0.6 MiB together, and 25 MiB before the
// stream of heartbeats for recordings and the metric of certificates.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 26) }
