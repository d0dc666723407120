package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// The limit was 31 MiB before the messages of CSI and storage/v1, which are 1 MiB together.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 32) }
